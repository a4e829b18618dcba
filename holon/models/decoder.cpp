#include "holon/models/decoder.h"

#include <algorithm>

#include "holon/base/index.h"
#include "holon/models/decode_step.h"
#include "holon/ops/values.h"

namespace holon::models {

namespace {

template <class T>
std::span<const T> row_of(const std::vector<T>& values, int64_t i, int64_t length) {
  return std::span<const T>(values).subspan(to_size(i * length), to_size(length));
}

// The last n columns as a tensor [rows, n].
Tensor last(const Rows& rows, int64_t n) {
  std::vector<int64_t> out;
  for (int64_t i = 0; i < rows.count(); ++i) {
    const auto row = rows.row(i).last(to_size(n));
    out.insert(out.end(), row.begin(), row.end());
  }
  return tensor(out, {rows.count(), n});
}

template <class F>
void add_column(Rows& rows, F&& value) {
  std::vector<int64_t> out;
  const int64_t n = rows.count();
  out.reserve(to_size(n * (rows.length + 1)));
  for (int64_t i = 0; i < n; ++i) {
    const auto row = rows.row(i);
    out.insert(out.end(), row.begin(), row.end());
    out.push_back(value(i));
  }
  rows = {std::move(out), rows.length + 1};
}

void select(Rows& from, const std::vector<int64_t>& rows) {
  std::vector<int64_t> out;
  for (int64_t i : rows) {
    const auto row = from.row(i);
    out.insert(out.end(), row.begin(), row.end());
  }
  from.values = std::move(out);
}

}  // namespace

std::span<const int64_t> Rows::row(int64_t i) const { return row_of(values, i, length); }
std::span<const float> Logits::row(int64_t i) const { return row_of(values, i, vocabulary); }
std::span<float> Logits::mutable_row(int64_t i) {
  return std::span(values).subspan(to_size(i * vocabulary), to_size(vocabulary));
}

Decoder::Decoder(const Model& model, Prompts prompts, int64_t max_length, CacheUse use)
    : model_(model),
      source_(std::move(prompts.source)),
      source_mask_(std::move(prompts.source_mask)),
      tokens_(std::move(prompts.tokens)),
      mask_(std::move(prompts.mask)),
      positions_(mask_),
      max_length_(max_length),
      use_(use),
      cache_(max_length) {
  // Padding takes no positions: a prompt begins at 0 wherever its row does.
  for (int64_t i = 0; i < positions_.count(); ++i) {
    int64_t seen = 0;
    for (int64_t j = 0; j < positions_.length; ++j) {
      int64_t& at = at_index(positions_.values, i * positions_.length + j);
      seen += at;
      at = std::max<int64_t>(0, seen - 1);
    }
  }
}

Decoder::~Decoder() = default;

Logits Decoder::compiled_next() {
  const int64_t rows = tokens_.count(), length = cache_.length();
  if (!step_ || !step_->fits(rows)) {
    step_.reset();  // before its memory becomes other memory
    if (cache_.capacity() <= length) {
      // Twice as much, as each capacity is compiled.
      const int64_t pages = (2 * length + KvCache::kPage) / KvCache::kPage;
      cache_.reserve(std::max(length + 1, std::min(max_length_, pages * KvCache::kPage)));
    }
    step_ = std::make_unique<DecodeStep>(model_, cache_, mask_);
  }
  std::vector<int64_t> tokens, positions;
  for (int64_t i = 0; i < rows; ++i) {
    tokens.push_back(tokens_.row(i).back());
    if (mask_.count()) positions.push_back(positions_.row(i).back());
  }
  return step_->run(tokens, positions);
}

Logits Decoder::next() {
  NoGradGuard guard;
  const bool cached = use_ != CacheUse::kNone;
  const int64_t n = cached ? tokens_.length - cache_.length() : tokens_.length;
  if (use_ == CacheUse::kStatic && n == 1 && cache_.length() > 0) return compiled_next();
  Inputs in{.cache = cached ? &cache_ : nullptr, .logits_to_keep = 1};
  if (mask_.count()) {
    in.attention_mask = last(mask_, mask_.length);
    in.position_ids = last(positions_, n);
  }
  Tensor ids = last(tokens_, n);
  if (source_.count()) {
    in.decoder_input_ids = ids;
    ids = last(source_, source_.length);
    if (source_mask_.count()) in.attention_mask = last(source_mask_, source_mask_.length);
  }
  const Tensor logits = model_(ids, in);
  return {to_vector<float>(logits), logits.size(2)};
}

int64_t Decoder::padding(int64_t row) const {
  if (!mask_.count()) return 0;
  const auto mask = mask_.row(row);
  return std::find(mask.begin(), mask.end(), 1) - mask.begin();
}

void Decoder::append(const std::vector<int64_t>& tokens) {
  add_column(tokens_, [&](int64_t i) { return at_index(tokens, i); });
  if (!mask_.count()) return;
  add_column(mask_, [](int64_t) { return int64_t{1}; });
  const Rows before = positions_;
  add_column(positions_, [&](int64_t i) { return before.row(i).back() + 1; });
}

void Decoder::select_rows(const std::vector<int64_t>& rows) {
  for (Rows* each : {&tokens_, &source_, &source_mask_})
    if (each->count()) select(*each, rows);
  if (mask_.count()) select(mask_, rows), select(positions_, rows);
  if (use_ == CacheUse::kNone) return;
  cache_.select_rows(rows);
  if (!step_) return;
  if (!step_->fits(tokens_.count()))
    step_.reset();
  else if (mask_.count())
    step_->set_mask(mask_);
}

}  // namespace holon::models
