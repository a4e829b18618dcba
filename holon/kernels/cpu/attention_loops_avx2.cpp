#define HOLON_ISA avx2
#define HOLON_VECTOR_BYTES 32
#include "holon/kernels/cpu/attention_loops_body.h"
