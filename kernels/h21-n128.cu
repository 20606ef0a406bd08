// h21-n128 (parent h21): key tiles of 128, as h16 has them, an ablation. Two stages of them leave room for one CTA an
//           SM, and one warpgroup alone has nobody to work while it waits.
// Loss      time +20.2 % [+19.9, +20.6] against h21, 382 TFLOPS (H200, published shape; history/).
// Launch    as h21, but 163912 bytes of dynamic shared memory.
#define BC 128
#include "h21.cu"
