"""Y = softmax(X), row by row; halves in and out."""


class RowSoftmax:
    name = "row_softmax"
    version = 1  # raise it when the inputs or the reference change
    parameters = ("R", "C")
    layouts = ("RC",)
    tensors = {"X": "float16", "Y": "float16"}
    outputs = ("Y",)
    distributions = ("normal", "large")

    def flops(self, shape):
        return 3 * shape["R"] * shape["C"]  # subtract, add, divide

    def exponentials(self, shape):
        return shape["R"] * shape["C"]

    def bytes(self, shape):
        return 2 * 2 * shape["R"] * shape["C"]

    def tiled(self, shape):
        return shape["R"], shape["C"]

    def dimensions(self, tensor, shape, layout):
        return {axis: shape[axis] for axis in layout}

    def inputs(self, xp, shape, layout, distribution, seed):
        x = xp.random.default_rng(seed).standard_normal((shape["R"], shape["C"]), dtype=xp.float32)
        return {"X": (x * (100 if distribution == "large" else 1)).astype(xp.float16)}

    def reference(self, xp, inputs, shape, layout):
        return {"Y": self._softmax(xp, inputs["X"].astype(xp.float64))}

    def plain(self, xp, inputs, shape, layout):
        return {"Y": self._softmax(xp, inputs["X"].astype(xp.float32)).astype(xp.float16)}

    def _softmax(self, xp, x):
        e = xp.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)


ROW_SOFTMAX = RowSoftmax()
