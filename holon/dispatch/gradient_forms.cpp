#include "holon/dispatch/gradient_forms.h"

#include <utility>

namespace holon {
namespace {
thread_local GradientForms* innermost = nullptr;
}  // namespace

GradientForms::GradientForms(std::span<const Tensor> incoming)
    : incoming_(incoming), outer_(std::exchange(innermost, this)) {}

GradientForms::~GradientForms() { innermost = outer_; }

GradientForms* GradientForms::current() { return innermost; }

void GradientForms::forget() {
  for (GradientForms* f = innermost; f; f = f->outer_) {
    f->forms_.clear();
    f->any_ = false;
  }
}

std::optional<TensorVec> GradientForms::redistributed(const TensorVec& inputs) const {
  if (!any_) return std::nullopt;
  std::optional<TensorVec> with;
  for (size_t i = 0; i < inputs.size(); ++i)
    for (size_t k = 0; k < incoming_.size(); ++k)
      if (inputs[i].defined() && forms_[k].defined() && inputs[i].impl() == incoming_[k].impl()) {
        if (!with) with = inputs;
        (*with)[i] = forms_[k];
      }
  return with;
}

void GradientForms::note(const Tensor& t, const Tensor& moved) {
  for (size_t k = 0; k < incoming_.size(); ++k)
    if (incoming_[k].impl() == t.impl()) {
      forms_.resize(incoming_.size());
      forms_[k] = moved;
      any_ = true;
    }
}

}  // namespace holon
