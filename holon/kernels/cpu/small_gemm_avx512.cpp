#define HOLON_ISA avx512
#include "holon/kernels/cpu/small_gemm_body.h"
