// Whether devices may round the factors of float32 products to TF32 (10 bits of mantissa), which is several times
// faster there.
#pragma once

namespace holon::kernels {

enum class Tf32 { kProducts, kConvolutions };

// At first what HOLON_TF32 says.
bool tf32_allowed(Tf32 of);
void allow_tf32(Tf32 of, bool allowed);

}  // namespace holon::kernels
