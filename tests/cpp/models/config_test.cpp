#include "holon/models/config.h"

#include <gtest/gtest.h>

#include "error_of.h"
#include "holon/models/llama.h"

namespace holon::models {
namespace {

bool contains(const std::string& text, const std::string& part) { return text.find(part) != text.npos; }

TEST(Config, MembersAreRead) {
  const Config c(R"({"n": 3, "x": 0.5, "on": true, "name": "silu", "list": [1, 2], "none": null, "in": {"k": 4}})");
  EXPECT_EQ(c.integer("n"), 3);
  EXPECT_EQ(c.number("n"), 3.0);
  EXPECT_EQ(c.number("x"), 0.5);
  EXPECT_TRUE(c.flag("on", false));
  EXPECT_EQ(c.text("name"), "silu");
  EXPECT_EQ(c.integers("list"), (std::vector<int64_t>{1, 2}));
  EXPECT_FALSE(c.has("none"));
  EXPECT_TRUE(c.lists("none"));
  EXPECT_EQ(c.integer("none", 7), 7);
  EXPECT_EQ(c.object("in").integer("k"), 4);
  EXPECT_EQ(c.object("absent").size(), 0);
}

TEST(Config, WrongMembersAreNamed) {
  const Config c(R"({"n": "three", "x": true})", "dir/config.json");
  EXPECT_TRUE(contains(value_error_of([&] { c.integer("n"); }), "dir/config.json: 'n' is of the type text"));
  EXPECT_TRUE(contains(value_error_of([&] { c.integer("absent"); }), "has no 'absent'"));
  EXPECT_TRUE(contains(value_error_of([&] { c.number("x"); }), "must be a number"));
  for (auto* text : {"", "[]", "{", "{\"a\": 1} x", "3"})
    EXPECT_TRUE(contains(value_error_of([&] { Config c2(text); }), "not a JSON object")) << text;
  EXPECT_TRUE(contains(value_error_of([&] { Config deep("{\"a\":" + std::string(5000, '[')); }), "not a JSON object"));
}

TEST(Config, UnknownMembersAreKeptInTheirOrder) {
  Config c(R"({"z": [1, {"y": null}], "a": 0.1})");
  c.set("dtype", "float32");
  c.set("a", 2);
  EXPECT_EQ(c.json(),
            "{\n  \"z\": [\n    1,\n    {\n      \"y\": null\n    }\n  ],\n  \"a\": 2,\n  \"dtype\": \"float32\"\n}\n");
}

TEST(Config, SizesThatDoNotFitAreErrors) {
  auto llama = [](const std::string& more) {
    return value_error_of([&] {
      LlamaConfig::from(Config(R"({"model_type": "llama", "vocab_size": 8, "hidden_size": 12, "intermediate_size": 4,
        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 9)" +
                               more + "}"));
    });
  };
  EXPECT_EQ(llama(""), "no error");
  EXPECT_TRUE(contains(llama(R"(, "num_key_value_heads": 3)"), "do not divide num_attention_heads"));
  EXPECT_TRUE(contains(llama(R"(, "head_dim": 5)"), "odd"));
  EXPECT_TRUE(
      contains(llama(R"(, "rope_scaling": {"rope_type": "dynamic", "factor": 2.0})"), "default, linear, llama3"));
  EXPECT_TRUE(contains(llama(R"(, "rope_scaling": {"type": "linear"})"), "no 'factor'"));
  EXPECT_TRUE(contains(llama(R"(, "rope_parameters": {"rope_theta": -1.0})"), "must be positive"));
}

}  // namespace
}  // namespace holon::models
