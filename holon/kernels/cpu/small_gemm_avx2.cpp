#define HOLON_ISA avx2
#include "holon/kernels/cpu/small_gemm_body.h"
