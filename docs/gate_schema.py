"""Write gate.schema.json: what `faperf gate --format json` prints. `python -m docs.gate_schema`"""

import json
from pathlib import Path

import msgspec

from faperf.comparison import GateReport

if __name__ == "__main__":
    schema = json.dumps(msgspec.json.schema(GateReport), indent=2)
    Path(__file__).with_name("gate.schema.json").write_text(f"{schema}\n", encoding="utf-8")
