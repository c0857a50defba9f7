// SPDX-License-Identifier: Apache-2.0

// Package loadgen puts load on a server with an OpenAI-compatible streaming API and measures it.
//
// [Run] performs one level: it keeps a fixed number of requests or conversations in flight (a closed loop),
// or sends requests at a rate or as a trace has them (an open loop), first for a warm-up, then for the
// measurement. [Summarize] turns the records into percentiles and rates.
// The package uses nothing but the standard library.
//
// # What is measured
//
// All times are from the monotonic clock. Zero is when the request is handed to the socket: its
// connection is there, its body is rendered, its header is written. In an open loop it is when the request
// was due, so that a client that is late shows in its own figures. The time of a chunk is when the last
// byte of its data reached this host, according to the kernel; where it does not tell (see package rxtime), it is
// when the read returned that brought it. Only chunks with text count: content, reasoning
// or a tool call; a role, an empty string, a usage report, a comment or [DONE] does not.
//
//	TTFT = time of the first chunk with text
//	E2E  = time of the last chunk with text
//	TPOT = (E2E − TTFT) / (N − n1)
//
// N is the server's usage.completion_tokens, and n1 what had been generated with the first
// chunk: from the usage on that chunk, or 1. Requests ask for usage on every chunk.
//
// # What counts
//
// A request fails if it ends without any token, with an error (also one inside the stream), with a
// finish_reason other than stop, length, tool_calls or function_call, or without one. It counts in the
// error rate and in no latency. A request that is cut after the level's duration is incomplete: sent,
// but neither good nor bad; if nothing arrived for it during the whole grace, it is stalled, which is a
// failure. A cancelled request does not count at all.
//
// The rates divide what the successful requests brought by the time from the first request to the
// last token of a success.
package loadgen
