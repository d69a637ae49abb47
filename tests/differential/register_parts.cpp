// The parts of a plan by their names, for the test program and, as a plug-in, for `trainer`.
#include "data.h"
#include "events.h"
#include "fulgur/core/contracts/registry.h"
#include "net.h"

using fulgur::test::DifferentialData;
using fulgur::test::DifferentialEvents;
using fulgur::test::DifferentialNet;
using fulgur::test::DifferentialStepEvents;

FULGUR_REGISTER(fulgur::LightningModule, DifferentialNet, "A small net for runs that a seed makes up.");
FULGUR_REGISTER(fulgur::DataModule, DifferentialData, "Made samples that have a number, in all kinds of loaders.");
FULGUR_REGISTER(fulgur::Callback, DifferentialEvents, "Stops, saves and kills by a plan, between steps.");
FULGUR_REGISTER(fulgur::Callback, DifferentialStepEvents, "Stops, saves and kills by a plan.");
