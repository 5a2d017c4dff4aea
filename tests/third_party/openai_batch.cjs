// A batch of chats like a user of the openai package for JavaScript; test_clients.py checks the output.
const OpenAI = require("openai");

async function main([url, model, ...texts]) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "none", maxRetries: 0 });
  const rows = texts.map((content, i) => ({
    custom_id: `row-${i}`,
    method: "POST",
    url: "/v1/chat/completions",
    body: { model, messages: [{ role: "user", content }], temperature: 0, max_tokens: 12 },
  }));
  const lines = rows.map((row) => `${JSON.stringify(row)}\n`).join("");
  const file = await OpenAI.toFile(Buffer.from(lines), "rows.jsonl");
  const input = await client.files.create({ file, purpose: "batch" });
  let batch = await client.batches.create({
    input_file_id: input.id,
    endpoint: "/v1/chat/completions",
    completion_window: "24h",
    metadata: { of: "a test" },
  });
  while (!["completed", "failed", "expired", "cancelled"].includes(batch.status)) {
    await new Promise((resolve) => setTimeout(resolve, 50));
    batch = await client.batches.retrieve(batch.id);
  }
  const output = await client.files.content(batch.output_file_id);
  const answers = (await output.text()).trim().split("\n").map((line) => JSON.parse(line));
  const listed = [];
  for await (const each of client.batches.list({ limit: 1 })) listed.push(each.id);
  const deleted = await client.files.delete(input.id);
  console.log(JSON.stringify({
    status: batch.status,
    counts: batch.request_counts,
    metadata: batch.metadata,
    answers: Object.fromEntries(answers.map((line) => [
      line.custom_id, line.response.body.choices[0].message.content,
    ])),
    is_listed: listed.includes(batch.id),
    is_deleted: deleted.deleted,
  }));
}

main(process.argv.slice(2));
