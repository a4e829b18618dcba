#define HOLON_ISA avx512
#include "holon/kernels/cpu/attention_loops_body.h"
