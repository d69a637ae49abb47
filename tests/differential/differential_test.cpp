// Runs that a seed makes up, done in two ways that must give the same result. FULGUR_ALL_SEEDS=1 runs all seeds of each
// relation, and not a quarter of them. FULGUR_SEEDS=FIRST:COUNT says which
// seeds. With FULGUR_SEED_FOLDER=FOLDER, what the last run of a seed has written stays there, and nothing is made
// simpler.
#include <catch2/catch_test_macros.hpp>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>

#include "fulgur/core/text/text.h"
#include "plan.h"
#include "relations.h"
#include "support/gpu.h"
#include "support/temporary_folder.h"

namespace differential_test {

using namespace fulgur::test;

namespace {

constexpr uint64_t kFew = 12;

struct Seeds {
  uint64_t first, count;
};

Seeds seeds(uint64_t count) {
  const char* asked = std::getenv("FULGUR_SEEDS");
  // A quarter of them finds most defects; continuous integration runs them all.
  if (asked == nullptr)
    return {.first = 0, .count = std::getenv("FULGUR_ALL_SEEDS") ? count : std::max(count / 4, std::min(count, kFew))};
  const std::string text = asked;
  const size_t colon = text.find(':');
  return {std::stoull(text), colon == std::string::npos ? 1 : std::stoull(text.substr(colon + 1))};
}

// The name of a link is to be refused.
Verdict without_refused(Verdict verdict, const Plan& plan) {
  if (verdict.kind == Verdict::Kind::refused && names_a_link(plan)) return {.kind = Verdict::Kind::no_matter};
  return verdict;
}

Verdict check(Verdict (*relation)(const Plan&, const std::filesystem::path&), const Plan& plan) {
  if (const char* kept = std::getenv("FULGUR_SEED_FOLDER")) {
    std::filesystem::remove_all(kept);
    std::filesystem::create_directories(kept);
    return without_refused(relation(plan, kept), plan);
  }
  const TemporaryFolder folder;
  return without_refused(relation(plan, folder.path()), plan);
}

constexpr std::chrono::seconds kShrinkFor{90};

// The simplest plan found that fails in the same way.
Plan shrunk(Verdict (*relation)(const Plan&, const std::filesystem::path&), Plan plan, Verdict& verdict) {
  const auto begun = std::chrono::steady_clock::now();
  for (bool better = true; better;) {
    better = false;
    for (const Plan& each : simpler(plan)) {
      if (std::chrono::steady_clock::now() - begun > kShrinkFor) return plan;
      Verdict now = check(relation, each);
      if (now.kind != verdict.kind) continue;
      plan = each;
      verdict = std::move(now);
      better = true;
      break;
    }
  }
  return plan;
}

void for_all_seeds(Verdict (*relation)(const Plan&, const std::filesystem::path&), uint64_t count = 200) {
  const Seeds asked = seeds(count);
  int64_t looked_at = 0, failures = 0;
  for (uint64_t seed = asked.first; seed < asked.first + asked.count; ++seed) {
    const Plan plan = make_plan(seed);
    Verdict verdict = check(relation, plan);
    if (verdict.kind != Verdict::Kind::no_matter) ++looked_at;
    if (!verdict.bad()) continue;
    std::cout << "seed " << seed << ": " << verdict.text << std::endl;
    // A config that is refused says itself why.
    const bool as_it_is = verdict.kind == Verdict::Kind::refused || std::getenv("FULGUR_SEED_FOLDER") != nullptr;
    const Plan simple = as_it_is ? plan : shrunk(relation, plan, verdict);
    FAIL_CHECK("seed " << seed << ", the simplest plan that fails so:\n"
                       << to_yaml(config_of(simple, "differential")) << "\n"
                       << verdict.text);
    if (++failures == 3) break;
  }
  std::cout << looked_at << " of " << asked.count << " plans\n";
  // The relation must be one that many plans have; a few seeds that are looked at by hand may have none that has it.
  CHECK((asked.count < 50 || looked_at * 5 > static_cast<int64_t>(asked.count)));
}

}  // namespace

TEST_CASE("seeds: the Trainer equals a loop by hand, bit for bit") { for_all_seeds(equals_loop_by_hand); }
TEST_CASE("seeds: several ranks equal one") { for_all_seeds(ranks_equal_one); }
TEST_CASE("seeds: meshes equal one rank") { for_all_seeds(meshes_equal_one, 100); }
TEST_CASE("seeds: meshes, killed and resumed, equal undisturbed ones, bit for bit") {
  for_all_seeds(killed_meshes_equal_quiet, 40);
}
TEST_CASE("seeds: killed and resumed equals undisturbed, bit for bit") { for_all_seeds(killed_equals_quiet); }
TEST_CASE("seeds: several ranks, killed and resumed, equal undisturbed ones, bit for bit") {
  for_all_seeds(killed_ranks_equal_quiet, 100);  // each plan starts several groups of processes
}
TEST_CASE("seeds: resumed with other ranks or batches, each sample of an epoch is seen once") {
  for_all_seeds(other_ranks_or_batches_see_each_sample_once);
}
TEST_CASE("seeds: asynchronous saves equal synchronous ones") { for_all_seeds(asynchronous_saves_equal_synchronous); }
TEST_CASE("seeds: dp, model_parallel and hybrid equal one device") { for_all_seeds(devices_equal_one); }
TEST_CASE("seeds: any number of workers equals none, bit for bit") { for_all_seeds(workers_equal_none); }
TEST_CASE("seeds: metrics equal those of the predictions") { for_all_seeds(metrics_equal_predictions); }
TEST_CASE("seeds: a run that rolls back again and again ends") { for_all_seeds(rollback_gives_up); }
TEST_CASE("seeds: schedules follow the samples over a change of accumulation") {
  for_all_seeds(schedules_follow_samples);
}
TEST_CASE("seeds: the program with SIGUSR1 before or after its training equals a quiet run, bit for bit") {
  for_all_seeds(signalled_program_equals_quiet, 40);
}
TEST_CASE("seeds: captured steps on the CPU equal eager ones, bit for bit") {
  for_all_seeds(captured_equals_eager_on_cpu);
}
TEST_CASE("seeds: captured steps of several ranks on the CPU equal eager ones, bit for bit") {
  for_all_seeds(captured_ranks_equal_eager, 100);
}
TEST_CASE("seeds: captured steps equal eager ones", "[gpu]") {
  require_gpus_of_forks(1);
  for_all_seeds(captured_equals_eager, 12);
}

}  // namespace differential_test
