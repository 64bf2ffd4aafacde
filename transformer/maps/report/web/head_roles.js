// What each head does: its role at the last step, as a badge, in one sentence, and all heads sorted by role.
//
// data.roles = { step, minScore, nearUniform, kinds: [{ role, minScore, badge, name, does, keys }], heads: [[site, layer, head, plays,
// evidence, uniformity, simplerRules], ...], distances }: plays is 1 if the head plays the first role of its evidence, which
// lists at most two [role, [first, last], weight, uniform, score, rows]; roles are indices of `kinds`, shares percents,
// simplerRules [[rule, number], ...] where the first role cannot be told from these rules; distances has of each site
// { uniform, heads: pixels, [layer][head] }, or null where it is not on one image.

import { byId, createHtml } from "../../../pages/dom.js";
import { formatNumber, pluralize } from "../../../pages/formatting.js";
import { headName } from "./head_statistics.js";
import { data } from "./page_data.js";

/** @import { Choose, HeadRole, RoleEvidence, RoleKind, Site, ViewState } from "./types.js" */

export const POSITION_NOUNS = {
  tokens: "token",
  grid: "patch",
  frames: "frame",
  points: "point",
  steps: "step",
  slots: "slot",
  experts: "expert",
};

/** @type {RoleKind} Of heads whose nearest role these examples cannot tell from simpler rules. */
const AMBIGUOUS = { role: "untold", badge: "?", name: "ambiguous here" };

/** @type {RoleKind} Of heads that attend as uniformly as those of an untrained model. */
const NEAR_UNIFORM = { role: "uniform", badge: "≈", name: "near uniform" };

/** @type {HeadRole[]} The roles of all heads. */
const headRoles = data.roles.heads.map(([site, layer, head, plays, values, uniformity, simplerRules]) => {
  const evidence = values.map(([kind, band, weight, uniform, score, rows]) => {
    return { kind: data.roles.kinds[kind], band, weight, uniform, score, rows };
  });
  const withoutRole = uniformity >= 100 * data.roles.nearUniform ? NEAR_UNIFORM : null;
  const role = simplerRules.length ? AMBIGUOUS : plays ? evidence[0].kind : withoutRole;
  return { site, layer, head, role, plays: Boolean(plays), evidence, uniformity, simplerRules };
});
const roleByHead = new Map(headRoles.map((each) => [`${each.site} ${each.layer} ${each.head}`, each]));

/**
 * The entry of a head; indices.
 * @param {number} site
 * @param {number} layer
 * @param {number} head
 */
export const roleOf = (site, layer, head) => /** @type {HeadRole} */ (roleByHead.get(`${site} ${layer} ${head}`));

/**
 * A few letters for a role; "–" for none.
 * @param {HeadRole} entry
 */
export function roleBadge({ role, evidence }) {
  if (!role) return "–";
  return role.badge || signedDistance(evidence[0]);
}

/** @param {RoleEvidence} evidence */
const signedDistance = ({ band: [distance] }) => `${distance < 0 ? "−" : "+"}${Math.abs(distance)}`;

/**
 * Words of a role with what its site's keys are put in for "{token}".
 * @param {string | undefined} words
 * @param {HeadRole} entry
 * @param {[number, number]} band
 */
function fillRoleText(words = "", { site }, band = [0, 0]) {
  const { kind, numLeadingPositions } = data.axes[data.sites[site].key];
  // What leads the patches of an image is no patch.
  const first = numLeadingPositions && kind === "grid" ? "class token" : `first ${POSITION_NOUNS[kind]}`;
  return words
    .replaceAll("first {token}", first)
    .replaceAll("{token}s", POSITION_NOUNS[kind].replace(/ch$/, "che") + "s")
    .replaceAll("{token}", POSITION_NOUNS[kind])
    .replaceAll("{away}", describeOffset(band[0]))
    .replaceAll("{band}", describeBand(band));
}

/**
 * A band of keys around the query, behind a comma; nothing for a role at no distance.
 * @param {[number, number]} band
 */
function describeBand([first, last]) {
  if (first === last) return first ? `, ${describeOffset(first)}` : "";
  if (first < 0 && last > 0) return `, up to ${last} away`;
  const [near, far] = last <= 0 ? [-last, -first] : [first, last];
  const side = last <= 0 ? "back" : "ahead";
  return near ? `, ${near} to ${far} ${side}` : `, from its own place to ${far} ${side}`;
}

/** @param {number} distance */
const describeOffset = (distance) => {
  const far = Math.abs(distance);
  return `${far} ${far === 1 ? "place" : "places"} ${distance < 0 ? "back" : "ahead"}`;
};

/**
 * A rule that gives the same maps, in words.
 * @param {[string, number]} options
 */
function simplerRuleText([rule, number]) {
  if (rule === "a fixed distance") return number ? `always ${describeOffset(number)}` : "always its own place";
  return rule === "a fixed position" ? `always position ${number + 1}` : rule;
}

/**
 * The numbers that support a role.
 * @param {RoleEvidence} evidence
 */
function evidenceText({ kind, weight, uniform, rows }) {
  if (kind.role === "alignment") return `${weight}% of ${pluralize(rows, "aligned row")} right (chance: ${uniform}%)`;
  const share = kind.role === "position" ? "in common with what position foretells" : "of its weight";
  return `${weight}% ${share} (uniform: ${uniform}%) in ${pluralize(rows, "row")}`;
}

/**
 * What a head does, in one sentence without its name.
 * @param {HeadRole} entry
 */
export function describeRole(entry) {
  const { role, plays, evidence, uniformity, simplerRules } = entry;
  const [first, second] = evidence;
  /** @param {RoleEvidence} one */
  const named = (one) => `“${fillRoleText(one.kind.name, entry)}”${describeBand(one.band)}: ${evidenceText(one)}`;
  if (!first) return "has too few rows to classify";
  if (role === AMBIGUOUS) {
    const others = simplerRules.map((each) => `, or ${simplerRuleText(each)}`).join("");
    return `ambiguous here: “${fillRoleText(first.kind.name, entry)}”${others}; either way ${evidenceText(first)}${distanceText(entry)}`;
  }
  if (plays) {
    const also = second ? `; also ${named(second)}` : "";
    return `${fillRoleText(first.kind.does, entry, first.band)}: ${evidenceText(first)}${onsetText(entry)}${also}${distanceText(entry)}`;
  }
  const nearest = `nearest ${named(first)}${second ? `, and ${named(second)}` : ""}`;
  const start = role === NEAR_UNIFORM ? `near uniform, as if over ${uniformity}% of the keys it sees` : "none of these";
  return `${start}; ${nearest}${distanceText(entry)}`;
}

/**
 * How far a head looks on an image.
 * @param {HeadRole} entry
 */
function distanceText({ site, layer, head }) {
  const distances = data.roles.distances[site];
  const pixels = distances?.heads[layer][head] ?? null;
  /** @param {number} value */
  const tenths = (value) => Number(value.toFixed(1));
  return pixels === null ? "" : `; looks ${tenths(pixels)} pixels far (uniform: ${tenths(distances?.uniform ?? 0)})`;
}

/**
 * Since when a head plays its role, where the run's statistics tell.
 * @param {HeadRole} entry
 */
function onsetText({ site, layer, head, role }) {
  const known = data.history.roles.find(
    (each) => each.site === site && each.layer === layer && each.head === head && each.role === role?.role,
  );
  return known ? `; since step ${formatNumber(known.onset)}` : "";
}

/** @param {Site} site */
export const siteLabel = (site) => site.name.replace("/", " · ");

/**
 * Fill the panel; `choose({ site, layer, head })` is called where a head is picked.
 * @param {Choose} choose
 */
export function renderRoles(choose) {
  byId("roles-note").textContent = rolesNote();
  const kinds = [...data.roles.kinds, AMBIGUOUS, NEAR_UNIFORM, null].filter((kind) => headRoles.some(({ role }) => role === kind));
  byId("roles-by-kind").replaceChildren(...kinds.map((kind) => roleRow(kind, choose)));
  const told = kinds.flatMap((kind) => headsWithRole(kind).map((entry) => headSentence(entry, choose)));
  byId("roles-by-head").replaceChildren(...told);
  addArrowNavigation(byId("roles-by-kind"));
  addArrowNavigation(byId("roles-by-head"));
  const rules = [...data.roles.kinds, AMBIGUOUS, NEAR_UNIFORM].map((kind) => [
    createHtml("dt", {}, fillRoleText(kind.name, headRoles[0])),
    createHtml("dd", {}, roleDefinition(kind, headRoles[0])),
  ]);
  byId("role-rules").replaceChildren(...rules.flat());
}

/** On what the roles rest. */
function rolesNote() {
  const texts = pluralize(data.titles.length, data.singleText ? "text" : "example");
  const many = data.titles.length > 1;
  const where = data.singleText
    ? `in ${many ? `these ${texts}` : "this text"}`
    : `over ${texts} at step ${formatNumber(data.roles.step)}, the last`;
  const percent = Math.round(100 * data.roles.minScore);
  const columns = data.roles.kinds.find(({ role }) => role === "same keys");
  const columnsPercent = Math.round(100 * (columns?.minScore ?? data.roles.minScore));
  return (
    `Read ${where}. A head has a role if the weight that it puts on the named keys is at least ${percent}% of the way ` +
    `from uniform weight to all of its weight (keys that are the same for all queries: ${columnsPercent}%).`
  );
}

/**
 * The rule of a role: what is measured, and from where on a head has it.
 * @param {RoleKind} kind
 * @param {HeadRole} entry
 */
function roleDefinition(kind, entry) {
  const percent = Math.round(100 * (kind.minScore ?? data.roles.minScore));
  if (kind === AMBIGUOUS)
    return (
      "On these examples the nearest role and a simpler rule give the same maps: a fixed distance, a fixed position, position alone, or " +
      "the key’s token alone. Texts whose repetitions lie at other distances tell them apart."
    );
  if (kind === NEAR_UNIFORM)
    return (
      `No role, and exp(entropy) of a row is at least ${Math.round(100 * data.roles.nearUniform)}% of the keys that it sees, on ` +
      "average. Heads of an untrained model attend so."
    );
  if (kind.role === "position")
    return (
      "What a row has in common, Σ min(w, p), with the mean map of the other examples by absolute or by relative position; uniform: " +
      `with equal weights. (common − uniform) ÷ (1 − uniform) ≥ ${percent}% (named only where nothing above fits).`
    );
  if (kind.role === "alignment")
    return (
      `Accuracy: how many largest weights of aligned rows fall on ${fillRoleText(kind.keys, entry)} (1 − alignment error rate); chance: the better ` +
      `of a random link and the straight diagonal. (weight − uniform) ÷ (1 − uniform) ≥ ${percent}%.`
    );
  return (
    `Weight: the mean weight on keys of this kind: ${fillRoleText(kind.keys, entry)}; uniform: that of equal weights; both over the rows ` +
    `that see one. (weight − uniform) ÷ (1 − uniform) ≥ ${percent}%.`
  );
}

/**
 * The heads of a role, the clearest first; of none in their own order.
 * @param {RoleKind | null} kind
 */
const headsWithRole = (kind) =>
  headRoles.filter(({ role }) => role === kind).sort((a, b) => (kind?.does ? b.evidence[0].score - a.evidence[0].score : 0));

/**
 * @param {RoleKind | null} kind
 * @param {Choose} choose
 */
function roleRow(kind, choose) {
  const entries = headRoles.filter(({ role }) => role === kind);
  const chips = data.sites.flatMap((site, index) => {
    const own = entries.filter((entry) => entry.site === index);
    if (!own.length) return [];
    const name = data.sites.length > 1 ? [createHtml("span", { class: "of-site" }, siteLabel(site))] : [];
    return [createHtml("span", { class: "heads-of-site" }, ...name, ...own.map((entry) => headChip(entry, choose)))];
  });
  const badge = kind ? kind.badge || "±k" : "–";
  const name = kind ? fillRoleText(kind.name, entries[0]) : "none of these";
  return createHtml(
    "div",
    { class: "kind-row", title: kind && roleDefinition(kind, entries[0]) },
    createHtml("span", { class: kind ? "badge" : "badge none" }, badge),
    createHtml(
      "div",
      {},
      createHtml("b", {}, name),
      createHtml("span", { class: "count" }, ` ${entries.length} `),
      ...chips,
    ),
  );
}

/**
 * @param {HeadRole} entry
 * @param {Choose} choose
 */
function headChip(entry, choose) {
  const site = data.sites[entry.site];
  const words = `head ${headName(site, entry.layer, entry.head)} of ${site.name} ${describeRole(entry)}`;
  const far = entry.role && !entry.role.badge ? ` (${signedDistance(entry.evidence[0])})` : "";
  const button = createHtml(
    "button",
    { type: "button", class: "head-chip", tabindex: -1, title: words, "aria-label": words },
    headName(site, entry.layer, entry.head) + far,
  );
  button.addEventListener("click", () => choose({ site: entry.site, layer: entry.layer, head: entry.head }));
  entry.chip = button;
  return button;
}

/**
 * One head in its sentence, a door to it.
 * @param {HeadRole} entry
 * @param {Choose} choose
 */
function headSentence(entry, choose) {
  const site = data.sites[entry.site];
  const of = data.sites.length > 1 ? ` of ${siteLabel(site)}` : "";
  const badge = createHtml("span", { class: entry.role ? "badge" : "badge none" }, roleBadge(entry));
  const name = createHtml("b", {}, `Head ${headName(site, entry.layer, entry.head)}`);
  const button = createHtml(
    "button",
    { type: "button", class: "told-head", tabindex: -1 },
    badge,
    createHtml("span", {}, name, `${of} ${describeRole(entry)}.`),
  );
  button.addEventListener("click", () => choose({ site: entry.site, layer: entry.layer, head: entry.head }));
  entry.sentence = button;
  return button;
}

/**
 * Of many doors one is reached by Tab, the chosen head's; the arrow keys go on from it to the next and choose it.
 * @param {HTMLElement} box
 */
export function addArrowNavigation(box) {
  box.addEventListener("keydown", (event) => {
    /** @type {Record<string, number>} */
    const steps = { ArrowDown: 1, ArrowRight: 1, ArrowUp: -1, ArrowLeft: -1 };
    const by = steps[event.key];
    const doors = [...box.querySelectorAll("button")];
    const next = doors[doors.findIndex((door) => door === document.activeElement) + by];
    if (!by || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    // The page's own arrow keys go over layers and steps.
    event.stopPropagation();
    next?.focus({ preventScroll: true });
    next?.click();
  });
}

/** @type {HeadRole | null | undefined} */
let selectedRole = null;

/**
 * Mark the chosen head, and bring its sentence into sight in its own box.
 * @param {ViewState} state
 */
export function selectRole({ site, layer, head }) {
  const entry = roleOf(site, layer, head);
  if (entry === selectedRole) return;
  /**
   * @param {HeadRole | null | undefined} each
   * @param {boolean} chosen
   */
  const mark = (each, chosen) => {
    for (const element of each ? [each.chip, each.sentence] : []) {
      if (!element) continue;
      element.setAttribute("aria-pressed", String(chosen));
      element.tabIndex = chosen ? 0 : -1;
    }
  };
  mark(selectedRole, false);
  mark(entry, true);
  selectedRole = entry;
  const box = byId("roles-by-head");
  if (!entry.sentence) return;
  const [top, height] = [entry.sentence.offsetTop, entry.sentence.offsetHeight];
  if (top < box.scrollTop || top + height > box.scrollTop + box.clientHeight) box.scrollTop = top - 4;
}
