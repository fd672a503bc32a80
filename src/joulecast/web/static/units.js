// Write quantities as joulecast/system/units.py does.

const PREFIXES = { n: 1e-9, "µ": 1e-6, m: 1e-3, "": 1, k: 1e3, M: 1e6, G: 1e9 };
// Smaller amounts are only zeros to a reader.
const LEAST_MONEY = 0.0001;
const BYTE_UNITS = ["KiB", "MiB", "GiB", "TiB"];

export function formatDigits(value) {
  if (value === 0 || !Number.isFinite(value)) {
    return value === 0 ? "0" : String(value);
  }
  const rounded = Math.abs(value) < 1000 ? Number(value.toExponential(2)) : value;
  const places = Math.max(0, 2 - Math.floor(Math.log10(Math.abs(rounded))));
  return rounded.toFixed(Math.min(places, 100));
}

function formatSi(value, unit, prefixes) {
  let chosen = value === 0 ? "" : prefixes[0];
  for (const prefix of prefixes.slice(1)) {
    if (Math.abs(value) >= 0.9995 * PREFIXES[prefix]) {
      chosen = prefix;
    }
  }
  return `${formatDigits(value / PREFIXES[chosen])} ${chosen}${unit}`;
}

export const formatEnergy = (energyJ) => formatSi(energyJ, "J", ["n", "µ", "m", "", "k", "M", "G"]);
export const formatPower = (powerW) => formatSi(powerW, "W", ["m", "", "k", "M"]);
export const formatShare = (share) => `${formatDigits(100 * share)} %`;
export const formatWh = (energyWh) => formatSi(energyWh, "Wh", ["n", "µ", "m", "", "k", "M", "G"]);

export function formatMass(massG) {
  return massG >= 999.5e3 ? `${formatDigits(massG / 1e6)} t` : formatSi(massG, "g", ["µ", "m", "", "k"]);
}

export function formatMoney(amount, currency) {
  if (amount > 0 && amount < LEAST_MONEY) {
    return `< ${LEAST_MONEY} ${currency ?? ""}`.trim();
  }
  const digits = Math.abs(amount) >= 1 ? amount.toFixed(2) : formatDigits(amount);
  return `${digits} ${currency ?? ""}`.trim();
}

export function formatBytes(sizeBytes) {
  if (sizeBytes < 1024) {
    return `${Math.round(sizeBytes)} B`;
  }
  let size = sizeBytes;
  for (const unit of BYTE_UNITS) {
    size /= 1024;
    if (size < 1023.5 || unit === "TiB") {
      return `${formatDigits(size)} ${unit}`;
    }
  }
}

export function formatDuration(durationS) {
  if (durationS < 59.95) {
    return formatSi(durationS, "s", ["n", "µ", "m", ""]);
  }
  let [large, small, largeS, smallS] = ["d", "h", 86400, 3600];
  if (Math.round(durationS) < 3600) {
    [large, small, largeS, smallS] = ["min", "s", 60, 1];
  } else if (Math.round(durationS / 60) < 24 * 60) {
    [large, small, largeS, smallS] = ["h", "min", 3600, 60];
  }
  const count = Math.round(durationS / smallS);
  const per = largeS / smallS;
  return `${Math.floor(count / per)} ${large} ${count % per} ${small}`;
}

export function formatInterval([low, high], form) {
  const [lowText, highText] = [form(low), form(high)];
  const [number, unit] = lowText.split(" ");
  return unit && highText.endsWith(` ${unit}`) ? `${number}–${highText}` : `${lowText} – ${highText}`;
}
