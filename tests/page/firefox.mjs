// Opens Home, Chat and Journey in Firefox through WebDriver BiDi; test_firefox.py checks the output.
// Arguments: the folder of puppeteer-core, the program, the server's URL.
const [folder, program, url] = process.argv.slice(2);
const { default: puppeteer } = await import(`file://${folder}/lib/puppeteer/puppeteer-core.js`);
const browser = await puppeteer.launch({ browser: "firefox", executablePath: program, headless: true });
const problems = [];

async function open(view, more = {}) {
  const page = await browser.newPage();
  await page.setViewport({ width: 1280, height: 900 });
  page.setDefaultTimeout(60_000);
  page.on("pageerror", (error) => problems.push(`${view}: ${error.message}`));
  page.on("console", (message) => message.type() === "error" && problems.push(`${view}: ${message.text()}`));
  await page.goto(`${url}/#${new URLSearchParams({ view, ...more })}`);
  return page;
}

const textOf = (page, selector) => page.$eval(selector, (element) => element.textContent.trim());

async function home() {
  const page = await open("home");
  await page.waitForSelector(".home-next tbody tr");
  await page.waitForSelector(".home-lines .of-word");
  const before = await textOf(page, ".home-next tbody");
  await page.$eval("#home-text", (field) => field.select());
  await page.type("#home-text", "The king said to the");
  await page.waitForFunction((old) => document.querySelector(".home-next tbody").textContent.trim() !== old
    && document.querySelector(".home-words").textContent.includes("king"), {}, before);
  return { bars: (await page.$$(".home-next tbody tr")).length, words: await textOf(page, ".home-words") };
}

async function chat() {
  const page = await open("chat");
  await page.waitForSelector("#message");
  await page.type("#message", "What is the capital of France?");
  await page.keyboard.press("Enter");
  await page.waitForSelector('[aria-label="Stop"]');
  await page.waitForFunction(() => document.querySelector(".of-assistant .markdown")?.textContent.length > 8);
  await page.keyboard.press("Escape");
  await page.waitForSelector(".turn-buttons .speed");
  const answer = await textOf(page, ".of-assistant .markdown");
  await page.reload();
  await page.waitForSelector(".of-assistant .markdown");
  return { answer, kept: await textOf(page, ".of-assistant .markdown") };
}

async function journey() {
  const page = await open("journey");
  await page.waitForSelector(".journey-stops li");
  const drawn = () => page.$eval(".journey canvas", (canvas) => canvas.toDataURL());
  const first = await drawn();
  await page.keyboard.press("ArrowRight");
  await page.waitForFunction(() => location.hash.includes("journey_stop=tokens"));
  const told = await textOf(page, ".journey-stops li.on h2");
  return { told, moves: (await drawn()) !== first, stops: (await page.$$(".journey-stops li")).length };
}

try {
  console.log(JSON.stringify({ home: await home(), chat: await chat(), journey: await journey(), problems }));
} finally {
  await browser.close();
}
