#define HOLON_ISA avx512
#include "holon/kernels/cpu/quantized_loops_body.h"
