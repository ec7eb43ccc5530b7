// For tests: random programs over rows. A machine is a class with apply(ProgramStep) and check(), which throws.
#pragma once

#include <rapidcheck.h>

#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <tuple>
#include <vector>

namespace outrider {

// Fails the program for rapidcheck (which then shrinks it) and for GoogleTest alike.
#define REQUIRE(condition)                                                                          \
  do {                                                                                              \
    if (!(condition)) throw std::logic_error("line " + std::to_string(__LINE__) + ": " #condition); \
  } while (false)

using ProgramStep = std::tuple<int, std::uint32_t, std::uint32_t>;  // action, and two numbers it reduces to its choices

// Inside a property. Actions are 0 to actions - 1.
template <class Machine>
void run_random_program(int actions) {
  const auto steps =
      *rc::gen::scale(2.0, rc::gen::container<std::vector<ProgramStep>>(rc::gen::tuple(
                               rc::gen::inRange(0, actions), rc::gen::resize(1000, rc::gen::arbitrary<std::uint32_t>()),
                               rc::gen::resize(1000, rc::gen::arbitrary<std::uint32_t>()))));
  Machine machine;
  for (const ProgramStep& step : steps) {
    machine.apply(step);
    machine.check();
  }
}

// The same machine over one long program: what only shows after many operations on the same objects.
template <class Machine>
void run_long_program(int actions, std::uint32_t seed) {
  std::mt19937 next(seed);
  Machine machine;
  for (int step = 0; step < 6000; ++step) {
    machine.apply({static_cast<int>(next() % static_cast<std::uint32_t>(actions)), next(), next()});
    machine.check();
  }
}

}  // namespace outrider
