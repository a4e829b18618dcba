#define HOLON_ISA avx512
#define HOLON_VECTOR_BYTES 64
#include "holon/kernels/cpu/sort_loops_body.h"
