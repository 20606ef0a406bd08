// h15-n64 (parent h15): key tiles of 64, an ablation. S takes half the registers: 232, and nothing spills.
// Gain      time -27.3 % [-27.5, -27.1] against h15, 407 TFLOPS (H200, published shape; history/); h16, which keeps 128
//           keys, is faster still.
// Launch    as h15, but 65560 bytes of dynamic shared memory.
#define BC 64
#include "h15.cu"
