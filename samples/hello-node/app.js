// The smallest useful Node service: it listens on $PORT, says hello to $TARGET, and lets requests in hand finish when
// it is told to stop.
"use strict";

const http = require("node:http");

const body = `Hello ${process.env.TARGET || "World"}!\n`;

const server = http.createServer((request, response) => {
  response.writeHead(200, { "Content-Type": "text/plain; charset=utf-8", "Content-Length": Buffer.byteLength(body) });
  response.end(body);
});
server.listen(process.env.PORT || 8080);

// The first process of a container gets no signal that it does not ask for.
process.on("SIGTERM", () => {
  server.close();
  server.closeIdleConnections();
});
