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
 * What a head does without its numbers: what that is called, and a sentence in two parts, of which the first says what
 * the name says.
 * @param {HeadRole} entry
 */
function roleWords(entry) {
  const { role, plays, evidence, simplerRules } = entry;
  const [first] = evidence;
  if (!first) return { name: "none of these", lead: "", does: "has too few rows to classify" };
  const near = `“${fillRoleText(first.kind.name, entry)}”`;
  if (role === AMBIGUOUS) {
    const others = simplerRules.map((each) => `, or ${simplerRuleText(each)}`).join("");
    return { name: role.name, lead: `${role.name}: `, does: `${near}${others}; either way` };
  }
  if (plays) return { name: fillRoleText(first.kind.name, entry), lead: "", does: `${fillRoleText(first.kind.does, entry, first.band)}:` };
  if (role) return { name: role.name, lead: `${role.name}, `, does: "as if over" };
  return { name: "none of these", lead: "none of these; ", does: `nearest ${near}${describeBand(first.band)}:` };
}

/**
 * What is measured of the words of `roleWords`, "" of heads with too few rows.
 * @param {HeadRole} entry
 * @param {(measured: (entry: HeadRole) => number) => string} number A measured number of one head or of several, in words.
 */
function measuredText({ role, evidence: [first] }, number) {
  if (!first) return "";
  if (role === NEAR_UNIFORM) return `${number((entry) => entry.uniformity)}% of the keys it sees`;
  const weight = `${number(({ evidence }) => evidence[0].weight)}%`;
  const uniform = `${number(({ evidence }) => evidence[0].uniform)}%`;
  const rows = number(({ evidence }) => evidence[0].rows);
  return evidenceText(first.kind, weight, uniform, rows);
}

/**
 * The numbers that support a role, in words.
 * @param {RoleKind} kind
 * @param {string} weight
 * @param {string} uniform
 * @param {string} rows
 */
function evidenceText({ role }, weight, uniform, rows) {
  const counted = rows === "1" ? "row" : "rows";
  if (role === "alignment") return `${weight} of ${rows} aligned ${counted} right (chance: ${uniform})`;
  const share = role === "position" ? "in common with what position foretells" : "of its weight";
  return `${weight} ${share} (uniform: ${uniform}) in ${rows} ${counted}`;
}

/**
 * The second of a head's roles, or of those nearest to it, with its numbers; "" if there is none.
 * @param {HeadRole} entry
 */
function secondRoleText(entry) {
  const { role, plays, evidence } = entry;
  if (role === AMBIGUOUS || !evidence.length) return "";
  const [start, others] = plays ? ["; also ", evidence.slice(1)] : role ? ["; nearest ", evidence] : ["; and ", evidence.slice(1)];
  if (!others.length) return "";
  const [{ kind, band, weight, uniform, rows }] = others;
  const numbers = evidenceText(kind, `${weight}%`, `${uniform}%`, formatNumber(rows));
  return `${start}“${fillRoleText(kind.name, entry)}”${describeBand(band)}: ${numbers}`;
}

/**
 * What a head does, in one sentence without its name.
 * @param {HeadRole} entry
 */
export function describeRole(entry) {
  const { lead, does } = roleWords(entry);
  if (!entry.evidence.length) return does;
  const measured = measuredText(entry, (value) => formatNumber(value(entry)));
  return `${lead}${does} ${measured}${entry.plays ? onsetText(entry) : ""}${secondRoleText(entry)}${distanceText(entry)}`;
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
  byId("role-groups").replaceChildren(...groupHeads().map((group) => roleGroup(group, choose)));
  addArrowNavigation(byId("role-groups"));
  const rules = [...data.roles.kinds, AMBIGUOUS, NEAR_UNIFORM].map((kind) => [
    createHtml("dt", {}, fillRoleText(kind.name, headRoles[0])),
    createHtml("dd", {}, roleDefinition(kind, headRoles[0])),
  ]);
  byId("role-rules").replaceChildren(...rules.flat());
}

/** The heads whose sentences are equal but for their numbers, by role; those of none last. */
function groupHeads() {
  const kinds = [...data.roles.kinds, AMBIGUOUS, NEAR_UNIFORM, null];
  return kinds.flatMap((kind) => [
    ...Map.groupBy(
      headRoles.filter(({ role }) => role === kind),
      (entry) => roleWords(entry).does,
    ).values(),
  ]);
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
    `from uniform weight to all of its weight (keys that are the same for all queries: ${columnsPercent}%). ` +
    "A head’s percentage is what its sentence measures."
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
 * One sentence, once, and the heads that it is of.
 * @param {HeadRole[]} entries
 * @param {Choose} choose
 */
function roleGroup(entries, choose) {
  const [first] = entries;
  const chips = data.sites.flatMap((site, index) => {
    const own = entries.filter((entry) => entry.site === index);
    if (!own.length) return [];
    const name = data.sites.length > 1 ? [createHtml("span", { class: "of-site" }, siteLabel(site))] : [];
    return [createHtml("div", { class: "heads-of-site" }, ...name, ...own.map((entry) => headChip(entry, choose)))];
  });
  const { name, does } = roleWords(first);
  const measured = measuredText(first, (value) => numberRange(entries.map(value)));
  const badge = first.role ? "badge" : "badge none";
  return createHtml(
    "div",
    { class: "role-group", title: first.role && roleDefinition(first.role, first) },
    createHtml("span", { class: badge }, roleBadge(first)),
    createHtml(
      "div",
      {},
      createHtml("p", {}, createHtml("b", {}, name), createHtml("span", { class: "count" }, ` ${entries.length}`)),
      createHtml("p", { class: "role-sentence" }, `${does} ${measured}`.trim()),
      ...chips,
    ),
  );
}

/**
 * "8", or "8–11" of heads that differ.
 * @param {number[]} values
 */
function numberRange(values) {
  const [least, most] = [Math.min(...values), Math.max(...values)].map((value) => formatNumber(value));
  return least === most ? most : `${least}–${most}`;
}

/**
 * @param {HeadRole} entry
 * @param {Choose} choose
 */
function headChip(entry, choose) {
  const site = data.sites[entry.site];
  const percent = entry.role === NEAR_UNIFORM ? entry.uniformity : entry.evidence[0]?.weight;
  const words = `head ${headName(site, entry.layer, entry.head)} of ${site.name}: ${describeRole(entry)}`;
  const button = createHtml(
    "button",
    { type: "button", class: "head-chip", tabindex: -1, title: words, "aria-label": words },
    headName(site, entry.layer, entry.head),
    ...(percent === undefined ? [] : [createHtml("span", { class: "head-weight" }, ` ${percent}%`)]),
  );
  button.addEventListener("click", () => choose({ site: entry.site, layer: entry.layer, head: entry.head }));
  entry.chip = button;
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

/** @type {HeadRole | null} */
let selectedRole = null;

/**
 * Mark the chosen head, and say beside its map what it does.
 * @param {ViewState} state
 */
export function selectRole({ site, layer, head }) {
  const entry = roleOf(site, layer, head);
  if (entry === selectedRole) return;
  const focused = selectedRole?.chip && selectedRole.chip === document.activeElement;
  for (const each of [selectedRole, entry]) {
    if (!each?.chip) continue;
    each.chip.setAttribute("aria-pressed", String(each === entry));
    each.chip.tabIndex = each === entry ? 0 : -1;
  }
  if (focused) entry.chip?.focus({ preventScroll: true });
  selectedRole = entry;
  byId("chosen-role").replaceChildren(
    createHtml("span", { class: entry.role ? "badge" : "badge none" }, roleBadge(entry)),
    ` ${describeRole(entry)}.`,
  );
}
