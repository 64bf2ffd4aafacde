// The page put together: the bar of the arms, the panels, and what makes all figures be drawn anew.

import { byId, make, smallButton } from "../../pages/dom.js";
import { redrawAll } from "../../pages/figure.js";
import { showConfigs } from "./arm_configs.js";
import { hiddenArms, named, slots } from "./arms.js";
import { showArms, showHeader } from "./comparison_table.js";
import { showMap } from "./hyperparameter_heatmap.js";
import { showTuned } from "./hyperparameter_sensitivity.js";
import { showGradients } from "./initial_gradients.js";
import { data } from "./page_data.js";
import { showForest, showSeeds } from "./paired_seeds.js";
import { openPage } from "./panels_and_tables.js";
import { showCells } from "./runs_table.js";
import { showBands, showHeads } from "./training_curves.js";

function showLegend() {
  const bar = byId("legend");
  const buttons = data.arms.map(({ name }) => {
    const button = make(
      "button",
      { type: "button", class: "arm-button", "aria-pressed": "true", "data-slot": slots.get(name) },
      ...named(name),
    );
    if (name === data.reference) button.append(make("i", {}, "reference"));
    button.addEventListener("click", () => toggleArm(name));
    return button;
  });
  const showAll = () => {
    hiddenArms.clear();
    armsChanged();
  };
  const all = smallButton("show all", showAll, { id: "all-arms", hidden: "" });
  bar.replaceChildren(...buttons, all);
}

function toggleArm(name) {
  if (!hiddenArms.delete(name)) hiddenArms.add(name);
  // Figures of nothing help nobody: whoever hides the last arm begins again with all.
  if (hiddenArms.size === data.arms.length) hiddenArms.clear();
  armsChanged();
}

function armsChanged() {
  for (const button of byId("legend").querySelectorAll(".arm-button")) {
    const { name } = data.arms.find((arm) => slots.get(arm.name) === Number(button.dataset.slot));
    button.setAttribute("aria-pressed", String(!hiddenArms.has(name)));
  }
  byId("all-arms").hidden = !hiddenArms.size;
  redrawAll();
}

function showStudy() {
  showHeader();
  showForest();
  showLegend();
  showArms();
  showSeeds();
  showBands();
  showTuned();
  showMap();
  showGradients();
  showHeads();
  showConfigs();
  showCells();
  redrawAll();
}

openPage(showStudy);
