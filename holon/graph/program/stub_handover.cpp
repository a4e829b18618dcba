#include "holon/boxing/handover.h"
namespace holon::boxing {
struct HandOver::Data {
  Plan plan;
  Dims d;
};
#define NO std::abort()
HandOver HandOver::prepare(const GlobalSpec*, const GlobalSpec*, const Dims&, DType, int, Input) { NO; }
const Plan& HandOver::plan() const { NO; }
bool HandOver::has_in() const { NO; }
bool HandOver::has_out() const { NO; }
const Dims& HandOver::in_shape() const { NO; }
const Dims& HandOver::out_shape() const { NO; }
int64_t HandOver::read_bytes() const { NO; }
std::span<const size_t> HandOver::post_scratch_bytes() const { NO; }
std::span<const size_t> HandOver::take_scratch_bytes() const { NO; }
void HandOver::post(const Array&, std::span<const Array>) { NO; }
void HandOver::take(const Array&, std::span<const Array>) { NO; }
void HandOver::release() { NO; }
void HandOver::bind() { NO; }
}  // namespace holon::boxing
