#define HOLON_ISA avx512
#include "holon/kernels/cpu/tree_gemm_body.h"
