#include "holon/boxing/prepared.h"

#include "holon/base/context.h"
#include "holon/boxing/live_log.h"
#include "holon/boxing/step_chain.h"

namespace holon::boxing {

struct Prepared::Data {
  Data(const Plan& p, Input input) : plan(p), chain(plan, 0, plan.steps().size(), Context::current().rank(), input) {}
  const Plan plan;
  StepChain chain;
};

Prepared Prepared::prepare(const Plan& plan, Input input) { return Prepared(std::make_shared<Data>(plan, input)); }

Prepared Prepared::prepare(const GlobalSpec* from, const GlobalSpec* to, const Dims& shape, DType dtype, Input input) {
  return prepare(boxing::plan(from, to, shape, dtype), input);
}

const Plan& Prepared::plan() const { return data_->plan; }
bool Prepared::has_in() const { return data_->chain.has_in(); }
bool Prepared::has_out() const { return data_->chain.has_out(); }
const Dims& Prepared::in_shape() const { return data_->chain.in_shape(); }
const Dims& Prepared::out_shape() const { return data_->chain.out_shape(); }
bool Prepared::communicates() const { return data_->chain.communicates(); }
std::vector<std::span<const int>> Prepared::collectives() const { return data_->chain.collectives(); }
bool Prepared::communicates_on_devices() const { return data_->chain.communicates_on_devices(); }
int64_t Prepared::read_bytes() const { return data_->chain.read_bytes(); }
bool Prepared::is_view() const { return data_->chain.is_view(); }
Array Prepared::view_of(const Array& in) const { return data_->chain.view_of(in); }
std::span<const size_t> Prepared::scratch_bytes() const { return data_->chain.scratch_bytes(); }
void Prepared::bind() const { data_->chain.bind(); }

void Prepared::run(const Array& in, const Array& out, std::span<const Array> scratch) const {
  LiveLog live(data_->plan);
  data_->chain.run(in, out, scratch);
}

}  // namespace holon::boxing
