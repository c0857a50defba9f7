// SPDX-License-Identifier: Apache-2.0

package loadgen_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/llmctl/llmctl/plugins/loadgen"
)

// One level of load on a server: four requests in flight, twenty measured.
func Example() {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for i := range 8 {
			fmt.Fprintf(w, "data: {\"choices\":[{\"text\":\" word\"}],\"usage\":{\"prompt_tokens\":512,\"completion_tokens\":%d}}\n\n", i+1)
			w.(http.Flusher).Flush()
		}
		fmt.Fprint(w, "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\ndata: [DONE]\n\n")
	}))
	defer server.Close()

	workload, err := loadgen.ParseWorkload("fixed(512,8)")
	if err != nil {
		fmt.Println(err)
		return
	}
	result, err := loadgen.Run(context.Background(), loadgen.Config{
		BaseURL: server.URL, Model: "demo", Workload: workload,
		Concurrency: 4, MaxRequests: 20, Seed: 1,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	s := loadgen.Summarize(result)
	fmt.Printf("%d of %d requests succeeded, error rate %.0f %%\n", s.OK, s.Sent, *s.ErrorRate*100)
	fmt.Println("p99 of TTFT is known:", s.TTFT.P99 != nil)
	// Output:
	// 20 of 20 requests succeeded, error rate 0 %
	// p99 of TTFT is known: true
}
