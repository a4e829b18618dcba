#define HOLON_ISA avx2
#include "holon/kernels/cpu/tree_gemm_body.h"
