// What each head does: its role at the last step, as a badge, in one sentence, and all heads sorted by role.
//
// data.roles = { step, minScore, minBroadFraction, kinds: [{ role, badge, name, does, keys }], heads: [[site, layer, head,
// its role or -1, the nearest role or -1, distance, weight, uniform, score, simplerRules], ...], distances }: roles are
// indices of `kinds`, shares percents, simplerRules [[rule, number], ...] where the nearest role cannot be told from these
// rules; distances has of each site { uniform, heads: pixels, [layer][head] }, or null where it is not on one image.

import { byId, createHtml } from "../../../pages/dom.js";
import { formatNumber, pluralize } from "../../../pages/formatting.js";
import { headName } from "./head_statistics.js";
import { data } from "./page_data.js";

/** @import { Choose, HeadRole, RoleKind, Site, ViewState } from "./types.js" */

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

/** @type {HeadRole[]} The roles of all heads. */
const headRoles = data.roles.heads.map(([site, layer, head, role, nearest, distance, weight, uniform, score, simplerRules]) => {
  /** @param {number} index */
  const kind = (index) => (index < 0 ? null : data.roles.kinds[index]);
  const known = simplerRules.length ? AMBIGUOUS : kind(role);
  return { site, layer, head, role: known, nearest: kind(nearest), distance, weight, uniform, score, simplerRules };
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
export function roleBadge({ role, distance }) {
  if (!role) return "–";
  return role.badge || `${distance < 0 ? "−" : "+"}${Math.abs(distance)}`;
}

/**
 * Words of a role with what its site's keys are put in for "{token}".
 * @param {string | undefined} words
 * @param {HeadRole} entry
 */
function fillRoleText(words = "", { site, distance }) {
  const { kind, numLeadingPositions } = data.axes[data.sites[site].key];
  const places = describeOffset(distance);
  // What leads the patches of an image is no patch.
  const first = numLeadingPositions && kind === "grid" ? "class token" : `first ${POSITION_NOUNS[kind]}`;
  return words
    .replaceAll("first {token}", first)
    .replaceAll("{token}", POSITION_NOUNS[kind])
    .replaceAll("{away}", places);
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
  const { role, nearest, simplerRules } = entry;
  if (!nearest) return { name: "none of these", lead: "", does: "has too few rows to classify" };
  const near = `“${fillRoleText(nearest.name, entry)}”`;
  if (role === AMBIGUOUS) {
    const others = simplerRules.map((each) => `, or ${simplerRuleText(each)}`).join("");
    return { name: role.name, lead: `${role.name}: `, does: `${near}${others}; either way` };
  }
  if (!role) return { name: "none of these", lead: "none of these; ", does: `nearest ${near}:` };
  return { name: fillRoleText(role.name, entry), lead: "", does: `${fillRoleText(role.does, entry)}:` };
}

/**
 * What is measured of the role, in words, "" of heads with too few rows.
 * @param {HeadRole} entry
 * @param {string} weight
 * @param {string} uniform
 */
function evidenceText({ nearest, role }, weight, uniform) {
  const kind = role && role !== AMBIGUOUS ? role : nearest;
  if (!kind) return "";
  if (kind.role === "broad") return `as if uniform over ${weight} of the keys it sees`;
  if (kind.role === "alignment") return `${weight} of aligned rows right (chance: ${uniform})`;
  return `${weight} of its weight (uniform: ${uniform})`;
}

/**
 * What a head does, in one sentence without its name.
 * @param {HeadRole} entry
 */
export function describeRole(entry) {
  const { lead, does } = roleWords(entry);
  if (!entry.nearest) return does;
  const onset = entry.role && entry.role !== AMBIGUOUS ? onsetText(entry) : "";
  return `${lead}${does} ${evidenceText(entry, `${entry.weight}%`, `${entry.uniform}%`)}${onset}${distanceText(entry)}`;
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
  const rules = [...data.roles.kinds, AMBIGUOUS].map((kind) => [
    createHtml("dt", {}, fillRoleText(kind.name, headRoles[0])),
    createHtml("dd", {}, roleDefinition(kind, headRoles[0])),
  ]);
  byId("role-rules").replaceChildren(...rules.flat());
}

/** The heads whose sentences are equal but for their numbers, by role; those of none last. */
function groupHeads() {
  const kinds = [...data.roles.kinds, AMBIGUOUS, null];
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
  return (
    `Read ${where}. A head has a role if the weight that it puts on the named keys is at least ${percent}% of the way ` +
    "from uniform weight to all of its weight. A head’s percentage is what its sentence measures."
  );
}

/**
 * The rule of a role: what is measured, and from where on a head has it.
 * @param {RoleKind} kind
 * @param {HeadRole} entry
 */
function roleDefinition(kind, entry) {
  const percent = Math.round(100 * data.roles.minScore);
  if (kind === AMBIGUOUS)
    return (
      "On these examples the nearest role and a simpler rule give the same maps: a fixed distance, a fixed position, position alone, or " +
      "the key’s token alone. Texts whose repetitions lie at other distances tell them apart."
    );
  if (kind.role === "broad")
    return `exp(entropy) of a row is at least ${Math.round(100 * data.roles.minBroadFraction)}% of the keys that it sees, on average.`;
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
  const evidence = evidenceText(first, percentRange(entries, "weight"), percentRange(entries, "uniform"));
  const badge = first.role ? "badge" : "badge none";
  return createHtml(
    "div",
    { class: "role-group", title: first.role && roleDefinition(first.role, first) },
    createHtml("span", { class: badge }, roleBadge(first)),
    createHtml(
      "div",
      {},
      createHtml("p", {}, createHtml("b", {}, name), createHtml("span", { class: "count" }, ` ${entries.length}`)),
      createHtml("p", { class: "role-sentence" }, `${does} ${evidence}`.trim()),
      ...chips,
    ),
  );
}

/**
 * "8%", or "8–11%" of heads that differ.
 * @param {HeadRole[]} entries
 * @param {"weight" | "uniform"} name
 */
function percentRange(entries, name) {
  const values = entries.map((entry) => entry[name]);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  return least === most ? `${most}%` : `${least}–${most}%`;
}

/**
 * @param {HeadRole} entry
 * @param {Choose} choose
 */
function headChip(entry, choose) {
  const site = data.sites[entry.site];
  const words = `head ${headName(site, entry.layer, entry.head)} of ${site.name}: ${describeRole(entry)}`;
  const button = createHtml(
    "button",
    { type: "button", class: "head-chip", tabindex: -1, title: words, "aria-label": words },
    headName(site, entry.layer, entry.head),
    ...(entry.nearest ? [createHtml("span", { class: "head-weight" }, ` ${entry.weight}%`)] : []),
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
