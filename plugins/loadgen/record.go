// SPDX-License-Identifier: Apache-2.0

package loadgen

import "time"

// Category says why a request failed. A status other than 200 is "http_" and the code; an abnormal
// finish_reason is the reason itself, such as "abort" or "content_filter". Empty: it succeeded.
type Category string

const (
	// ConnectionRefused: nothing listens at the address.
	ConnectionRefused Category = "connection_refused"
	// ConnectionReset: the connection broke while the request or the answer was on its way.
	ConnectionReset Category = "connection_reset"
	// TransportError is any other failure to reach the server: name resolution, TLS, protocol.
	TransportError Category = "transport_error"
	// Timeout: the request took longer than Config.RequestTimeout, or the connection could not be made in time.
	Timeout Category = "timeout"
	// ServerError: the server reported an error inside a response with status 200.
	ServerError Category = "server_error"
	// EmptyOutput: the answer ended without a single token.
	EmptyOutput Category = "empty_output"
	// TruncatedStream: the answer ended without a finish_reason.
	TruncatedStream Category = "truncated_stream"
	// MalformedChunk: an event was not JSON.
	MalformedChunk Category = "malformed_chunk"
	// LineTooLong: a line of the stream was longer than 16 MiB.
	LineTooLong Category = "line_too_long"
	// NotStreamed: the answer was not a stream of events.
	NotStreamed Category = "not_streamed"
	// TooManyTokens: the server generated more than max_tokens; the request was aborted.
	TooManyTokens Category = "too_many_tokens"
	// InvalidTiming: the measured times contradict each other.
	InvalidTiming Category = "invalid_timing"
	// Stalled: nothing at all arrived between the end of the level's duration and the end of its grace, or
	// for Config.StallTimeout.
	Stalled Category = "stalled"
	// Incomplete: still receiving tokens when the grace after the duration ended. Sent, but not failed.
	Incomplete Category = "incomplete"
	// Cancelled: aborted because the level was. Neither sent nor failed.
	Cancelled Category = "cancelled"
)

// TokensSource says where a count of output tokens comes from.
type TokensSource string

const (
	// FromUsage is the server's own usage.completion_tokens, reasoning included.
	FromUsage TokensSource = "usage"
	// FromChunks is the number of chunks that carried text; a chunk may hold several tokens.
	FromChunks TokensSource = "chunk_count"
)

// BufferedFrom is the number of tokens from which on an answer is judged to be Buffered or not.
const BufferedFrom = 16

// Record is what was measured of one request. A duration or count of zero means that there is none.
// In JSON, times are nanoseconds and what is missing is left out.
type Record struct {
	// Index counts the requests of the level from 0, warm-up included. It decides the prompt.
	Index int32 `json:"index"`
	// Scheduled, Sent and Done are times since Result.Started: when the request was due, when it was
	// handed to the socket, and when its answer ended. Latencies count from Sent, in an open loop from
	// Scheduled. A request that never reached a socket has Sent equal to Scheduled.
	Scheduled time.Duration `json:"scheduledNs"`
	Sent      time.Duration `json:"sentNs"`
	Done      time.Duration `json:"doneNs"`
	// TTFT and E2E are the times to the first and to the last chunk with any text (content,
	// reasoning, or a tool call); FirstAnswer to the first one with content or a tool call.
	TTFT        time.Duration `json:"ttftNs,omitzero"`
	FirstAnswer time.Duration `json:"firstAnswerNs,omitzero"`
	E2E         time.Duration `json:"e2eNs,omitzero"`

	// Conversation and Turn count from 1; 0: the request is not part of one.
	Conversation int32 `json:"conversation,omitzero"`
	Turn         int32 `json:"turn,omitzero"`

	// PromptTarget and OutputTarget are the tokens that were wanted; OutputTarget is max_tokens. The
	// lengths of a dataset's prompts are not known.
	PromptTarget int32 `json:"promptTarget,omitzero"`
	OutputTarget int32 `json:"outputTarget"`
	// PromptTokens is the server's usage.prompt_tokens.
	PromptTokens int32 `json:"promptTokens,omitzero"`
	// OutputTokens is the length of the answer, according to TokensSource.
	OutputTokens int32        `json:"outputTokens,omitzero"`
	TokensSource TokensSource `json:"tokensSource,omitzero"`
	// FirstChunkTokens is the number of tokens that had come with the first chunk with text: from the
	// usage on that chunk, else 1; all of them where there was only one chunk.
	FirstChunkTokens int32 `json:"firstChunkTokens,omitzero"`
	// Chunks is the number of chunks with text.
	Chunks int32 `json:"chunks"`

	FinishReason string   `json:"finishReason,omitzero"`
	Category     Category `json:"category,omitzero"`
	// Error is never empty when there is a Category.
	Error string `json:"error,omitzero"`
	// Short: ended before OutputTarget although Config.IgnoreEOS was set.
	Short bool `json:"short,omitzero"`
	// Buffered: more than 90 % of the chunks came in the last 5 % of E2E, which points at a proxy that
	// holds the stream back. Only judged from 16 tokens on.
	Buffered bool `json:"buffered,omitzero"`
	// Partial is the beginning of the text that came before a failure.
	Partial string `json:"partial,omitzero"`
}

// OK reports whether the request succeeded.
func (r *Record) OK() bool { return r.Category == "" }

// TPOT is the time per output token after the first chunk:
//
//	(E2E − TTFT) / (OutputTokens − FirstChunkTokens)
//
// It is undefined, and ok is false, where that is not a positive number.
func (r *Record) TPOT() (d time.Duration, ok bool) {
	n := r.OutputTokens - r.FirstChunkTokens
	if r.TTFT <= 0 || n <= 0 || r.E2E <= r.TTFT {
		return 0, false
	}
	return (r.E2E - r.TTFT) / time.Duration(n), true
}

// knowsTokens reports whether the number of output tokens may be used; with chunks, also where it is
// that of the chunks.
func (r *Record) knowsTokens(chunks bool) bool {
	return r.TokensSource == FromUsage || r.TokensSource == FromChunks && chunks
}

func (r *Record) fail(c Category, message string) {
	r.Category, r.Error = c, message
}
