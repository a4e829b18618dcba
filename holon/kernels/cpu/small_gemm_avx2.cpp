#define HOLON_ISA avx2
#define HOLON_VECTOR_BYTES 32
#include "holon/kernels/cpu/small_gemm_body.h"
