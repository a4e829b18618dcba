#include "holon/data/synthetic_digits.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <numbers>
#include <vector>

#include "holon/base/error.h"
#include "holon/base/hash.h"
#include "holon/base/index.h"
#include "holon/base/parallel.h"
#include "holon/data/atomic_file.h"
#include "holon/data/gzip.h"
#include "holon/data/idx.h"
#include "holon/data/mnist.h"

namespace holon::data {

namespace {

constexpr int kSide = 28;
constexpr double kHeight = 20;  // of a digit, in pixels, as in MNIST

struct Point {
  double x, y;
};

// A line through points of the unit square, y downwards: round ones are splines, the others have corners.
struct Stroke {
  bool round;
  std::vector<Point> points;
};
using Glyph = std::vector<Stroke>;

// The styles in which people write each digit.
const std::array<std::vector<Glyph>, 10>& glyphs() {
  static const std::array<std::vector<Glyph>, 10> all{{
      {
          {{true,
            {{.5, .04}, {.28, .16}, {.19, .5}, {.28, .84}, {.5, .96}, {.72, .84}, {.81, .5}, {.72, .16}, {.5, .04}}}},
          {{true,
            {{.62, .06},
             {.4, .08},
             {.24, .35},
             {.26, .75},
             {.46, .95},
             {.68, .78},
             {.76, .42},
             {.66, .14},
             {.48, .06}}}},
          {{true,
            {{.7, .12}, {.44, .06}, {.22, .34}, {.22, .7}, {.44, .94}, {.7, .82}, {.8, .5}, {.66, .18}, {.4, .14}}}},
      },
      {
          {{false, {{.5, .04}, {.5, .96}}}},
          {{false, {{.34, .22}, {.53, .04}, {.52, .96}}}},
          {{false, {{.32, .2}, {.52, .04}, {.52, .95}}}, {false, {{.3, .95}, {.74, .95}}}},
          {{true, {{.58, .04}, {.5, .4}, {.44, .96}}}},
      },
      {
          {{true, {{.22, .27}, {.32, .09}, {.54, .05}, {.74, .17}, {.73, .38}, {.56, .6}, {.36, .79}, {.2, .93}}},
           {false, {{.2, .93}, {.82, .92}}}},
          {{true,
            {{.22, .24},
             {.4, .06},
             {.67, .1},
             {.73, .33},
             {.55, .62},
             {.32, .86},
             {.18, .88},
             {.2, .76},
             {.36, .76},
             {.6, .92},
             {.84, .86}}}},
          {{false, {{.2, .22}, {.46, .05}, {.74, .24}, {.2, .94}, {.8, .93}}}},
          {{true, {{.2, .12}, {.5, .05}, {.74, .22}, {.58, .56}, {.22, .9}, {.5, .86}, {.82, .95}}}},
      },
      {
          {{true, {{.22, .15}, {.45, .04}, {.71, .14}, {.69, .34}, {.44, .47}}},
           {true, {{.44, .47}, {.73, .56}, {.78, .78}, {.53, .96}, {.2, .86}}}},
          {{false, {{.22, .07}, {.75, .07}, {.45, .4}}},
           {true, {{.45, .4}, {.72, .5}, {.77, .78}, {.5, .96}, {.2, .87}}}},
          {{true,
            {{.24, .1},
             {.56, .04},
             {.72, .2},
             {.58, .4},
             {.4, .46},
             {.44, .52},
             {.68, .58},
             {.74, .8},
             {.5, .96},
             {.22, .9}}}},
      },
      {
          {{false, {{.3, .06}, {.2, .56}, {.82, .56}}}, {false, {{.68, .1}, {.62, .96}}}},
          {{false, {{.64, .96}, {.65, .05}, {.17, .62}, {.85, .63}}}},
          {{true, {{.26, .06}, {.2, .34}, {.3, .5}, {.54, .5}, {.73, .4}}}, {false, {{.74, .05}, {.64, .96}}}},
          {{false, {{.4, .05}, {.2, .5}, {.78, .48}}}, {false, {{.6, .3}, {.52, .96}}}},
      },
      {
          {{false, {{.74, .06}, {.32, .07}, {.28, .42}}},
           {true, {{.28, .42}, {.52, .36}, {.76, .5}, {.74, .79}, {.48, .95}, {.2, .86}}}},
          {{true, {{.78, .07}, {.4, .07}, {.28, .34}, {.58, .45}, {.75, .65}, {.6, .91}, {.22, .92}}}},
          {{true, {{.32, .08}, {.27, .42}, {.54, .4}, {.75, .58}, {.68, .86}, {.42, .96}, {.2, .88}}},
           {false, {{.32, .08}, {.78, .05}}}},
      },
      {
          {{true,
            {{.68, .05}, {.43, .2}, {.27, .5}, {.27, .76}, {.46, .95}, {.7, .85}, {.72, .63}, {.5, .53}, {.3, .66}}}},
          {{true, {{.5, .04}, {.32, .36}, {.23, .7}, {.36, .93}, {.62, .92}, {.72, .73}, {.55, .57}, {.27, .7}}}},
          {{true, {{.36, .04}, {.26, .4}, {.26, .8}, {.48, .96}, {.72, .82}, {.68, .6}, {.44, .58}, {.27, .76}}}},
      },
      {
          {{false, {{.2, .08}, {.79, .08}, {.44, .96}}}},
          {{false, {{.2, .08}, {.79, .07}, {.44, .96}}}, {false, {{.34, .52}, {.76, .49}}}},
          {{true, {{.2, .14}, {.48, .1}, {.8, .07}}}, {true, {{.8, .07}, {.56, .46}, {.47, .96}}}},
          {{false, {{.2, .22}, {.21, .08}, {.78, .08}, {.42, .96}}}},
      },
      {
          {{true,
            {{.7, .15},
             {.49, .04},
             {.28, .17},
             {.36, .38},
             {.62, .56},
             {.74, .78},
             {.5, .96},
             {.27, .8},
             {.38, .57},
             {.64, .38},
             {.7, .15}}}},
          {{true, {{.5, .04}, {.3, .14}, {.34, .38}, {.5, .46}, {.68, .36}, {.69, .13}, {.5, .04}}},
           {true, {{.5, .46}, {.27, .58}, {.26, .84}, {.5, .96}, {.75, .83}, {.73, .57}, {.5, .46}}}},
          {{true,
            {{.64, .1},
             {.36, .08},
             {.32, .3},
             {.64, .56},
             {.66, .86},
             {.42, .95},
             {.3, .78},
             {.6, .46},
             {.74, .2},
             {.62, .08}}}},
      },
      {
          {{true, {{.72, .27}, {.58, .07}, {.35, .1}, {.26, .32}, {.42, .5}, {.64, .42}, {.73, .22}}},
           {false, {{.73, .2}, {.66, .6}, {.6, .96}}}},
          {{true, {{.71, .3}, {.54, .05}, {.3, .14}, {.27, .38}, {.46, .5}, {.68, .36}, {.72, .24}}},
           {true, {{.72, .22}, {.71, .62}, {.54, .92}, {.26, .88}}}},
          {{true, {{.7, .12}, {.44, .06}, {.26, .26}, {.38, .48}, {.62, .4}, {.72, .12}, {.7, .5}, {.66, .96}}}},
      },
  }};
  return all;
}

// Numbers that follow from a key. (Distributions of the standard library differ between libraries.)
class Random {
 public:
  explicit Random(uint64_t key) : state_(key) {}
  uint64_t next() { return splitmix64(state_); }
  double uniform(double low, double high) { return low + (high - low) * static_cast<double>(next() >> 11) * 0x1p-53; }
  size_t below(size_t n) { return static_cast<size_t>(uniform(0, static_cast<double>(n))); }
  // Normal, as far as digits are concerned: a sum of uniform numbers, and never far off.
  double normal(double deviation) { return deviation * (uniform(-1, 1) + uniform(-1, 1) + uniform(-1, 1)); }

 private:
  uint64_t state_;
};

// Points on the line, so close that straight pieces between them will do.
std::vector<Point> traced(const Stroke& stroke) {
  const auto& p = stroke.points;
  if (!stroke.round || p.size() < 3) return p;
  constexpr int kPieces = 5;
  std::vector<Point> out;
  auto at = [&](size_t i) { return p[std::min(i, p.size() - 1)]; };
  for (size_t i = 0; i + 1 < p.size(); ++i) {
    Point a = p[i == 0 ? 0 : i - 1], b = p[i], c = at(i + 1), d = at(i + 2);
    for (int k = 0; k < kPieces; ++k) {
      double t = static_cast<double>(k) / kPieces;
      auto spline = [t](double a, double b, double c, double d) {
        return b + 0.5 * t * (c - a + t * (2 * a - 5 * b + 4 * c - d + t * (3 * (b - c) + d - a)));
      };
      out.push_back({spline(a.x, b.x, c.x, d.x), spline(a.y, b.y, c.y, d.y)});
    }
  }
  out.push_back(p.back());
  return out;
}

class Canvas {
 public:
  // Ink along a line whose radius changes from one end to the other, with an edge that is `soft` pixels wide.
  void draw(Point a, Point b, double radius_a, double radius_b, double soft) {
    double reach = std::max(radius_a, radius_b) + soft;
    int x0 = pixel(std::min(a.x, b.x) - reach), x1 = pixel(std::max(a.x, b.x) + reach + 1);
    int y0 = pixel(std::min(a.y, b.y) - reach), y1 = pixel(std::max(a.y, b.y) + reach + 1);
    double dx = b.x - a.x, dy = b.y - a.y, length2 = std::max(dx * dx + dy * dy, 1e-9);
    for (int y = y0; y < y1; ++y)
      for (int x = x0; x < x1; ++x) {
        double px = x + 0.5 - a.x, py = y + 0.5 - a.y;
        double t = std::clamp((px * dx + py * dy) / length2, 0.0, 1.0);
        double distance = std::sqrt((px - t * dx) * (px - t * dx) + (py - t * dy) * (py - t * dy));
        double ink = std::clamp(0.5 + (radius_a + t * (radius_b - radius_a) - distance) / soft, 0.0, 1.0);
        float& here = at(x, y);
        here = std::max(here, static_cast<float>(ink));
      }
  }

  void blur(double strength) {
    auto side = static_cast<float>(strength), middle = 1 - 2 * side;
    Canvas rows;
    for (int y = 0; y < kSide; ++y)
      for (int x = 0; x < kSide; ++x)
        rows.at(x, y) = middle * at(x, y) + side * ((x > 0 ? at(x - 1, y) : 0) + (x + 1 < kSide ? at(x + 1, y) : 0));
    for (int y = 0; y < kSide; ++y)
      for (int x = 0; x < kSide; ++x)
        at(x, y) =
            middle * rows.at(x, y) + side * ((y > 0 ? rows.at(x, y - 1) : 0) + (y + 1 < kSide ? rows.at(x, y + 1) : 0));
  }

  float& at(int x, int y) { return at_index(ink_, y * kSide + x); }

 private:
  static int pixel(double x) { return std::clamp(static_cast<int>(std::floor(x)), 0, kSide); }
  std::array<float, kSide * kSide> ink_{};
};

// A sample's lines in pixels.
std::vector<std::vector<Point>> lines_of(const Glyph& glyph, Random& random) {
  const double angle = random.normal(0.17), slant = random.normal(0.27) - 0.12;
  const double wide = random.uniform(0.65, 1.25), wave = random.normal(0.035),
               phase = random.uniform(0, 2 * std::numbers::pi);
  const double c = std::cos(angle), s = std::sin(angle);
  std::vector<std::vector<Point>> lines;
  Point low{1e9, 1e9}, high{-1e9, -1e9};
  for (Stroke stroke : glyph) {
    for (auto& p : stroke.points) p = {p.x + random.normal(0.042), p.y + random.normal(0.042)};
    auto line = traced(stroke);
    for (auto& p : line) {
      double x = (p.x - 0.5 + wave * std::sin(2 * std::numbers::pi * p.y + phase)) * wide + slant * (0.5 - p.y),
             y = p.y - 0.5;
      p = {c * x - s * y, s * x + c * y};
      low = {std::min(low.x, p.x), std::min(low.y, p.y)};
      high = {std::max(high.x, p.x), std::max(high.y, p.y)};
    }
    lines.push_back(std::move(line));
  }
  // In the box of MNIST's digits, then the middle of the ink in the middle of the picture: by length, as the width is
  // about the same.
  double size = kHeight * random.uniform(0.82, 1.02) / std::max(high.x - low.x, high.y - low.y);
  double length = 0, mx = 0, my = 0;
  for (auto& line : lines)
    for (size_t i = 0; i + 1 < line.size(); ++i) {
      double l = std::hypot(line[i + 1].x - line[i].x, line[i + 1].y - line[i].y);
      length += l, mx += l * (line[i].x + line[i + 1].x) / 2, my += l * (line[i].y + line[i + 1].y) / 2;
    }
  double cx = kSide / 2.0 + random.normal(0.7), cy = kSide / 2.0 + random.normal(0.7);
  for (auto& line : lines)
    for (auto& p : line) p = {cx + size * (p.x - mx / length), cy + size * (p.y - my / length)};
  return lines;
}

uint8_t draw(uint64_t key, uint8_t* out) {
  Random random(key);
  auto digit = random.below(10);
  const auto& styles = glyphs()[digit];
  auto lines = lines_of(styles[random.below(styles.size())], random);
  Canvas canvas;
  const double radius = random.uniform(0.75, 1.75), soft = random.uniform(0.8, 1.5), pressure = random.normal(0.12);
  for (auto& line : lines)
    for (size_t i = 0; i + 1 < line.size(); ++i) {
      auto at = [&](size_t k) {
        return radius * (1 + pressure * (2.0 * static_cast<double>(k) / static_cast<double>(line.size() - 1) - 1));
      };
      canvas.draw(line[i], line[i + 1], at(i), at(i + 1), soft);
    }
  canvas.blur(random.uniform(0, 0.16));
  const double brightness = random.uniform(0.85, 1.1), grain = random.uniform(0, 0.1);
  for (int y = 0; y < kSide; ++y)
    for (int x = 0; x < kSide; ++x) {
      double ink = canvas.at(x, y);
      if (ink > 0) ink = ink * brightness * (1 + random.normal(grain));
      out[y * kSide + x] = static_cast<uint8_t>(std::clamp(255 * ink + 0.5, 0.0, 255.0));
    }
  for (size_t spots = random.below(4); spots > 1; --spots)  // dust
    out[random.below(kSide * kSide)] = static_cast<uint8_t>(random.below(120));
  return static_cast<uint8_t>(digit);
}

}  // namespace

std::pair<Tensor, Tensor> draw_digits(int64_t n, uint64_t seed, uint64_t stream) {
  if (n < 0) fail_value("draw_digits: {} digits were requested; the number must not be negative.", n);
  Array images = Array::empty({n, kSide, kSide}, uint8), labels = Array::empty({n}, uint8);
  Random keys(seed ^ Random(stream).next());
  const uint64_t base = keys.next();
  parallel_for(n, 256, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      labels.data<uint8_t>()[i] =
          draw(Random(base + static_cast<uint64_t>(i)).next(), images.data<uint8_t>() + i * kSide * kSide);
  });
  return {Tensor::local(std::move(images)), Tensor::local(std::move(labels))};
}

void write_synthetic_mnist(const FilePath& given, const SyntheticMnistOptions& options) {
  namespace fs = std::filesystem;
  const fs::path folder = given.string();
  if (options.train < 1 || options.test < 1)
    fail_value("synthetic_mnist: {} training and {} test samples. Each must be at least 1.", options.train,
               options.test);
  std::error_code failed;
  fs::create_directories(folder, failed);
  if (failed) fail_runtime("synthetic_mnist: cannot create the folder {}: {}.", folder.string(), failed.message());
  for (bool train : {true, false})
    for (bool of_images : {true, false})
      for (const char* ending : {"", ".gz"}) {
        fs::path path = folder / (mnist_file(train, of_images) + ending);
        if (!fs::exists(path, failed)) continue;
        if (!options.force)
          fail_runtime("synthetic_mnist: {} exists already. Name another folder, or allow overwriting (--force).",
                       path.string());
        // A plain file would be read instead of what is written now.
        if (*ending == '\0') fs::remove(path, failed);
      }
  for (bool train : {true, false}) {
    auto [images, labels] = draw_digits(train ? options.train : options.test, options.seed, train ? 0 : 1);
    for (bool of_images : {true, false}) {
      AtomicFile file(folder / (mnist_file(train, of_images) + ".gz"));
      auto packed = gzip(idx_bytes(of_images ? images : labels));
      file.write(packed.data(), packed.size());
      file.commit();
    }
  }
}

}  // namespace holon::data
