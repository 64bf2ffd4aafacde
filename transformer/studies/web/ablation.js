// The page put together: the bar of the arms, the panels, and what makes all figures be drawn anew.

import { byId, createHtml, smallButton } from "../../pages/dom.js";
import { redrawAllFigures } from "../../pages/figure.js";
import { showArmConfigs } from "./arm_configs.js";
import { armLabel, armSlots, hiddenArms } from "./arms.js";
import { showArms, showHeader } from "./comparison_table.js";
import { showHyperparameterHeatmap } from "./hyperparameter_heatmap.js";
import { showSensitivity } from "./hyperparameter_sensitivity.js";
import { showInitialGradients } from "./initial_gradients.js";
import { ablation } from "./page_data.js";
import { showForestPlot, showPairedSeeds } from "./paired_seeds.js";
import { openPage } from "./panels_and_tables.js";
import { showRuns } from "./runs_table.js";
import { showHeadStatistics, showPerformanceProfiles, showTrainingCurves } from "./training_curves.js";

function showLegend() {
  const bar = byId("legend");
  const buttons = ablation.arms.map(({ name }) => {
    const button = createHtml(
      "button",
      { type: "button", class: "arm-button", "aria-pressed": "true", "data-slot": armSlots.get(name) },
      ...armLabel(name),
    );
    if (name === ablation.reference) button.append(createHtml("i", {}, "reference"));
    button.addEventListener("click", () => toggleArm(name));
    return button;
  });
  const showAll = () => {
    hiddenArms.clear();
    onArmsChanged();
  };
  const all = smallButton("show all", showAll, { id: "all-arms", hidden: "" });
  bar.replaceChildren(...buttons, all);
}

/** @param {string} name */
function toggleArm(name) {
  if (!hiddenArms.delete(name)) hiddenArms.add(name);
  // Figures of nothing help nobody: whoever hides the last arm begins again with all.
  if (hiddenArms.size === ablation.arms.length) hiddenArms.clear();
  onArmsChanged();
}

function onArmsChanged() {
  for (const button of byId("legend").querySelectorAll(".arm-button")) {
    const arm = ablation.arms.find(({ name }) => String(armSlots.get(name)) === button.getAttribute("data-slot"));
    button.setAttribute("aria-pressed", String(!arm || !hiddenArms.has(arm.name)));
  }
  byId("all-arms").hidden = !hiddenArms.size;
  redrawAllFigures();
}

function showAblation() {
  showHeader();
  showForestPlot();
  showLegend();
  showArms();
  showPairedSeeds();
  showPerformanceProfiles();
  showTrainingCurves();
  showSensitivity();
  showHyperparameterHeatmap();
  showInitialGradients();
  showHeadStatistics();
  showArmConfigs();
  showRuns();
  redrawAllFigures();
}

openPage(showAblation);
