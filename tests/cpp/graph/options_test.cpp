// The table of options: each can be set and read by its name, is said in the text that ranks compare, and refuses what
// it cannot be.
#include "holon/graph/options/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <set>
#include <variant>

#include "holon/base/error.h"
#include "holon/graph/nn_graph.h"
#include "tests/cpp/error_of.h"

namespace holon::graph {
namespace {

using testing::HasSubstr;

// Another value than the given one, which the option may have.
OptionValue another(const Option& o, const OptionValue& value) {
  if (std::holds_alternative<std::string>(value))
    return std::string(std::string_view(o.name) == "schedule" ? "gpipe" : "a file");
  if (auto* on = std::get_if<bool>(&value)) return !*on;
  if (auto* n = std::get_if<int64_t>(&value)) return *n + 1;
  if (std::holds_alternative<std::optional<DType>>(value)) return std::optional(float16);
  return std::vector<std::string>{"one", "two"};
}

TEST(Options, EachIsSetReadAndSaid) {
  std::set<std::string> names;
  for (const Option& o : option_table()) {
    SCOPED_TRACE(o.name);
    EXPECT_TRUE(names.insert(o.name).second);
    CompileOptions options;
    const OptionValue before = get_option(options, o.name), after = another(o, before);
    set_option(&options, o.name, after);
    EXPECT_EQ(get_option(options, o.name), after);
    EXPECT_FALSE(options == CompileOptions());
    EXPECT_EQ(agreed_text(options) == agreed_text({}), o.local);
    EXPECT_FALSE(str(options).empty());
    set_option(&options, o.name, before);
    EXPECT_TRUE(options == CompileOptions());
  }
  EXPECT_EQ(str(CompileOptions()), "");
}

TEST(Options, Texts) {
  CompileOptions o;
  o.micro_batches = 4, o.uneven = true, o.zero_stage = 2, o.disabled_passes = {"cse", "hoist"};
  o.schedule = "gpipe", o.bucket_bytes = 100;
  EXPECT_EQ(str(o),
            "4 micro-batches, uneven if need be, schedule gpipe, ZeRO 2, buckets of 100 bytes, without pass cse, "
            "without pass hoist");
  EXPECT_THAT(agreed_text({}), HasSubstr("1 micro-batches, schedule auto, ZeRO 0"));
}

TEST(Options, RefuseWhatTheyCannotBe) {
  auto error = [](const char* name, OptionValue value) {
    CompileOptions options;
    const std::string said = value_error_of([&] { set_option(&options, name, std::move(value)); });
    EXPECT_TRUE(options == CompileOptions()) << name;
    return said;
  };
  EXPECT_THAT(error("bucket_byte", int64_t{1}), HasSubstr("there is no option 'bucket_byte'. There are amp, "));
  EXPECT_EQ(error("bucket_bytes", true), "config: the option 'bucket_bytes' is an int; got a bool.");
  EXPECT_THAT(error("bucket_bytes", int64_t{-1}), HasSubstr("-1 bytes"));
  EXPECT_THAT(error("micro_batches", int64_t{0}), HasSubstr("0 micro-batches; there must be at least one"));
  EXPECT_THAT(error("zero_stage", int64_t{4}), HasSubstr("stage 4; it is 1"));
  EXPECT_THAT(error("zero_min_elements", int64_t{-1}), HasSubstr("at least -1 elements"));
  EXPECT_THAT(error("memory_budget_bytes", int64_t{-1}), HasSubstr("0 for no limit"));
  EXPECT_THAT(error("amp", std::optional(float32)), HasSubstr("it must be bfloat16, float16"));
  EXPECT_THAT(error("schedule", std::string("none")), HasSubstr("there is no schedule 'none'"));
}

TEST(Options, OfAConfig) {
  nn::GraphConfig config;
  const uint64_t revision = config.revision();
  config.set_schedule("zb-h1");
  config.enable_amp(true, float16);
  config.enable_zero(true, 3, 10);
  EXPECT_EQ(config.options().schedule, "zero_bubble");
  EXPECT_EQ(config.str(), "amp float16, schedule zero_bubble, ZeRO 3, shards of at least 10 elements");
  EXPECT_GT(config.revision(), revision);
  EXPECT_THAT(value_error_of([&] { config.enable_zero(true, 2, -1); }), HasSubstr("at least -1 elements"));
  EXPECT_THAT(value_error_of([&] { config.enable_zero(true, 0); }), HasSubstr("stage 0"));
  EXPECT_EQ(config.options().zero_stage, 3);
  config.enable_zero(false);
  config.set("bucket_bytes", int64_t{1} << 16);
  EXPECT_EQ(std::get<int64_t>(config.get("bucket_bytes")), 1 << 16);
}

}  // namespace
}  // namespace holon::graph
