#define HOLON_ISA avx2
#include "holon/kernels/cpu/quantized_loops_body.h"
