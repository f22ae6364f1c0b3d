// Graphile Worker at the settings of its own performance page: 24 jobs at once, a pool of 25, a
// local queue of 500, completions batched. The same protocol as bench/peers/protocol.py:
// arguments in, one line of JSON out; marks of eight bytes in the folder named by BENCH_MARKS.

import { openSync, writeSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";
import { parseArgs } from "node:util";

const CALLERS = 32;
const PAGE = 5000;
const DIFFERENT = 20000;

const modules = createRequire(`${process.env.BENCH_NODE_MODULES}/here.js`);
const graphile = await import(pathToFileURL(modules.resolve("graphile-worker")));

const { values, positionals } = parseArgs({
  allowPositionals: true,
  options: {
    url: { type: "string" },
    seconds: { type: "string", default: "60" },
    jobs: { type: "string", default: "1" },
  },
});
const [command] = positionals;
const url = values.url;
const seconds = Number(values.seconds);
const jobs = Number(values.jobs);

// process.hrtime is the clock that Python calls monotonic.
const now = () => process.hrtime.bigint();

function marker(kind) {
  let file;
  const bytes = Buffer.alloc(8);
  return (number) => {
    file ??= openSync(`${process.env.BENCH_MARKS}/${kind}-${process.pid}`, "a");
    bytes.writeBigUInt64LE(number);
    writeSync(file, bytes);
  };
}

const markStart = marker("start");
const markLatency = marker("latency");
const taskList = {
  noop: async () => markStart(now()),
  stamp: async ({ sent }) => markLatency(now() - BigInt(sent)),
};

function makeOrders(count) {
  const model = JSON.parse(process.env.BENCH_PAYLOAD);
  return Array.from({ length: count }, (_, number) => ({ ...model, order_id: 10000 + number }));
}

// A quarter of the time goes before the clock runs, so that all connections are open.
async function create(utils, callers) {
  const orders = makeOrders(DIFFERENT);
  const callAfterCall = async (end) => {
    let count = 0;
    while (performance.now() < end || count === 0) {
      await utils.addJob("noop", orders[count++ % DIFFERENT]);
    }
    return count;
  };
  const allCallers = async (during) => {
    const began = performance.now();
    const calls = Array.from({ length: callers }, () => callAfterCall(began + during * 1000));
    const counts = await Promise.all(calls);
    const count = counts.reduce((sum, each) => sum + each, 0);
    return { count, seconds: (performance.now() - began) / 1000 };
  };
  const warmUp = await allCallers(seconds / 4);
  return seconds ? await allCallers(seconds) : warmUp;
}

async function bulk(utils) {
  const orders = makeOrders(Math.min(PAGE, jobs));
  let count = 0;
  const began = performance.now();
  while (count < jobs && performance.now() - began < seconds * 1000) {
    const some = orders.slice(0, jobs - count);
    await utils.addJobs(some.map((payload) => ({ identifier: "noop", payload })));
    count += some.length;
  }
  return { count, seconds: (performance.now() - began) / 1000 };
}

async function latency(utils) {
  for (let each = 0; each < jobs; each++) {
    await utils.addJob("stamp", { sent: String(now()) });
    await new Promise((resume) => setTimeout(resume, 10 + Math.random() * 20));
  }
  return { count: jobs };
}

async function work() {
  const runner = await graphile.run({
    preset: {
      worker: {
        connectionString: url,
        concurrentJobs: 24,
        maxPoolSize: 25,
        localQueue: { size: 500 },
        completeJobBatchDelay: 0,
        failJobBatchDelay: 0,
        logger: new graphile.Logger(() => () => {}),
      },
    },
    taskList,
  });
  await runner.promise;
  return {};
}

async function answer() {
  if (command === "worker") return work();
  const utils = await graphile.makeWorkerUtils({
    connectionString: url,
    maxPoolSize: CALLERS,
    logger: new graphile.Logger(() => () => {}),
  });
  try {
    switch (command) {
      case "migrate":
        await utils.migrate();
        return {};
      case "create-one":
        return await create(utils, 1);
      case "create-32":
        return await create(utils, CALLERS);
      case "bulk":
        return await bulk(utils);
      default:
        return await latency(utils);
    }
  } finally {
    await utils.release();
  }
}

console.log(JSON.stringify(await answer()));
