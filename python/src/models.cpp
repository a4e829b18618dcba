// holon.models: models of checkpoints, whose Python face is python/holon/models.py.
#include "holon/models.h"

#include <nanobind/stl/function.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <unordered_map>

#include "args.h"
#include "bind.h"
#include "holon/tensor/tracer.h"

namespace holon::python {

namespace {

using models::Model;
using OptionalTensor = std::optional<Tensor>;

// Runs f without Python's lock, unless a graph is captured, which asks Python for names.
template <class F>
auto unlocked(F&& f) {
  std::optional<nb::gil_scoped_release> released;
  if (!tracer()) released.emplace();
  return f();
}

models::Inputs inputs_of(const OptionalTensor& attention_mask, const OptionalTensor& position_ids,
                         const OptionalTensor& document_ids, const OptionalTensor& token_type_ids,
                         const OptionalTensor& decoder_input_ids, const OptionalTensor& decoder_attention_mask) {
  auto value = [](const OptionalTensor& t) { return t ? *t : Tensor(); };
  return {.attention_mask = value(attention_mask),
          .position_ids = value(position_ids),
          .document_ids = value(document_ids),
          .token_type_ids = value(token_type_ids),
          .decoder_input_ids = value(decoder_input_ids),
          .decoder_attention_mask = value(decoder_attention_mask)};
}

// The paths of the parts in the model's tree, with their stages.
std::vector<std::pair<std::string, int>> stages_of(const Model& m) {
  std::unordered_map<const void*, std::string> paths;
  for (auto& [path, module] : m.named_modules()) paths.emplace(module.identity(), path);
  std::vector<std::pair<std::string, int>> out;
  for (auto& [module, stage] : m.stages()) out.emplace_back(paths.at(module.identity()), stage);
  return out;
}

// Takes over the options that are given by their names.
void set_options(models::GenerateOptions& o, const nb::dict& given) {
  for (auto [key, value] : given) {
    const std::string name = nb::cast<std::string>(key);
    auto take = [&, &value = value](const char* option, auto& field) {
      if (name != option) return false;
      if (!nb::try_cast(value, field))
        fail_type("generate: {} is of the type {}, which it cannot be.", name, nb::type_name(value.type()).c_str());
      return true;
    };
    const bool known = take("max_new_tokens", o.max_new_tokens) || take("max_length", o.max_length) ||
        take("do_sample", o.do_sample) || take("temperature", o.sampling.temperature) ||
        take("top_k", o.sampling.top_k) || take("top_p", o.sampling.top_p) || take("seed", o.seed) ||
        take("num_beams", o.num_beams) || take("length_penalty", o.length_penalty) ||
        take("early_stopping", o.early_stopping) || take("repetition_penalty", o.logits.repetition_penalty) ||
        take("no_repeat_ngram_size", o.logits.no_repeat_ngram_size) ||
        take("min_new_tokens", o.logits.min_new_tokens) || take("min_length", o.logits.min_length) ||
        take("bad_words_ids", o.logits.bad_words_ids) || take("eos_token_id", o.eos_token_id) ||
        take("pad_token_id", o.pad_token_id) || take("stop_strings", o.stop_strings) ||
        take("use_cache", o.use_cache) || take("cache_implementation", o.cache_implementation);
    if (!known) fail_type("generate: there is no option {}.", name);
  }
}

models::Parallel parallel_of(int64_t dp, int64_t tp, int64_t pp, int64_t ep, int64_t cp) {
  return {.dp = dp, .tp = tp, .pp = pp, .ep = ep, .cp = cp};
}

}  // namespace

void bind_models(nb::module_& m) {
  using namespace nb::literals;
  nb::class_<Model>(m, "Model", "holon.models.Model's core.")
      .def_prop_ro("module", [](const Model& model) { return cpp_module_object(model); })
      .def_prop_ro("config", [](const Model& model) { return model.config().json(); })
      .def("stages", stages_of)
      .def("placements",
           [](const Model& model) {
             std::vector<Placement> out;
             for (auto& layout : model.layouts()) out.push_back(layout.placement);
             return out;
           })
      .def(
          "forward",
          [](const Model& model, const Tensor& x, const OptionalTensor& attention_mask,
             const OptionalTensor& position_ids, const OptionalTensor& document_ids,
             const OptionalTensor& token_type_ids, const OptionalTensor& decoder_input_ids,
             const OptionalTensor& decoder_attention_mask) {
            const auto inputs = inputs_of(attention_mask, position_ids, document_ids, token_type_ids, decoder_input_ids,
                                          decoder_attention_mask);
            return unlocked([&] { return model(x, inputs); });
          },
          "input"_a, "attention_mask"_a.none(), "position_ids"_a.none(), "document_ids"_a.none(),
          "token_type_ids"_a.none(), "decoder_input_ids"_a.none(), "decoder_attention_mask"_a.none())
      .def(
          "loss",
          [](const Model& model, const Tensor& x, const Tensor& labels, const OptionalTensor& attention_mask,
             const OptionalTensor& position_ids, const OptionalTensor& document_ids,
             const OptionalTensor& token_type_ids, const OptionalTensor& decoder_input_ids,
             const OptionalTensor& decoder_attention_mask) {
            const auto inputs = inputs_of(attention_mask, position_ids, document_ids, token_type_ids, decoder_input_ids,
                                          decoder_attention_mask);
            return unlocked([&] { return model.loss(x, labels, inputs); });
          },
          "input"_a, "labels"_a, "attention_mask"_a.none(), "position_ids"_a.none(), "document_ids"_a.none(),
          "token_type_ids"_a.none(), "decoder_input_ids"_a.none(), "decoder_attention_mask"_a.none())
      .def(
          "generate",
          [](const Model& model, const Tensor& ids, const OptionalTensor& attention_mask, const nb::dict& given,
             std::function<std::string(const std::vector<int64_t>&)> decode,
             std::function<bool(int64_t, const std::vector<int64_t>&)> streamer) {
            models::GenerateOptions options = models::generation_options(model);
            set_options(options, given);
            options.attention_mask = attention_mask ? *attention_mask : Tensor();
            options.decode = std::move(decode);
            options.streamer = std::move(streamer);
            return unlocked([&] { return models::generate(model, ids, options); });
          },
          "ids"_a, "attention_mask"_a.none(), "options"_a, "decode"_a.none(), "streamer"_a.none())
      .def("generation_config", [](const Model& model) { return model.generation_config().json(); })
      .def("set_generation_config",
           [](Model& model, const std::string& json) {
             model.set_generation_config(models::Config(json, "generation_config"));
           })
      .def(
          "quantize",
          [](Model& model, int bits, int64_t group_size, bool lm_head, const std::string& format) {
            unlocked([&] {
              model.quantize({.bits = bits, .group_size = group_size, .lm_head = lm_head, .format = format});
            });
          },
          "bits"_a, "group_size"_a, "lm_head"_a, "format"_a)
      .def(
          "add_lora",
          [](Model& model, const std::vector<std::string>& targets, int64_t r, double alpha, double dropout,
             bool rslora) {
            models::LoraOptions options{{.r = r, .alpha = alpha, .dropout = dropout, .rslora = rslora}, targets};
            unlocked([&] { model.add_lora(options); });
          },
          "target_modules"_a, "r"_a, "lora_alpha"_a, "lora_dropout"_a, "use_rslora"_a)
      .def("lora_candidates", &Model::lora_candidates)
      .def("merge_lora", [](Model& model) { unlocked([&] { model.merge_lora(); }); })
      .def("unmerge_lora", [](Model& model) { unlocked([&] { model.unmerge_lora(); }); })
      .def("remove_lora", [](Model& model) { unlocked([&] { model.remove_lora(); }); })
      .def("lora_parameters",
           [](const Model& model) {
             std::vector<std::string> names;
             if (!model.lora()) return names;
             for (auto& [name, t] : model.lora()->state_dict()) names.push_back(name);
             return names;
           })
      .def(
          "save_adapter",
          [](const Model& model, const std::string& path, const std::string& base) {
            unlocked([&] { model.save_adapter(path, base); });
          },
          "path"_a, "base_model_name_or_path"_a)
      .def(
          "load_adapter", [](Model& model, const std::string& path) { unlocked([&] { model.load_adapter(path); }); },
          "path"_a)
      .def(
          "save_pretrained",
          [](const Model& model, const std::string& path) { unlocked([&] { model.save_pretrained(path); }); },
          "path"_a);
  m.def(
      "model_from_pretrained",
      [](const std::string& path, int64_t dp, int64_t tp, int64_t pp, int64_t ep, int64_t cp, nb::handle dtype,
         const std::string& device) {
        const models::ModelOptions options{.dtype = expect_dtype(dtype, "from_pretrained"), .device = device};
        return unlocked([&] { return models::from_pretrained(path, parallel_of(dp, tp, pp, ep, cp), options); });
      },
      "path"_a, "dp"_a, "tp"_a, "pp"_a, "ep"_a, "cp"_a, "dtype"_a, "device"_a, "The model of a checkpoint.");
  m.def(
      "model_from_config",
      [](const std::string& config, int64_t dp, int64_t tp, int64_t pp, int64_t ep, int64_t cp, nb::handle dtype,
         const std::string& device) {
        const models::ModelOptions options{.dtype = expect_dtype(dtype, "from_config"), .device = device};
        return unlocked(
            [&] { return models::from_config(models::Config(config), parallel_of(dp, tp, pp, ep, cp), options); });
      },
      "config"_a, "dp"_a, "tp"_a, "pp"_a, "ep"_a, "cp"_a, "dtype"_a, "device"_a,
      "A model of a configuration, with drawn parameters.");
  m.def("model_architectures", models::architectures, "The classes of transformers whose checkpoints are known.");
}

}  // namespace holon::python
