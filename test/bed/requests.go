// SPDX-License-Identifier: Apache-2.0

package bed

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// auditPolicy has the API server write down what service accounts ask for. The
// control plane and the tests' own clients are administrators.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, userGroups: ["system:serviceaccounts"]}
- {level: None}
`

// Request is one request to the API server; a watch is one.
type Request struct {
	Verb     string // get, list, watch, create, …
	Resource string // plural, with the subresource: pods/log
	Name     string // empty for collections
	URI      string // path and query
	Status   int    // HTTP status
}

// Requests returns what users of KubeconfigFor in a namespace have asked the API
// server for so far, in the order in which the requests ended; a watch is there
// from its beginning.
func (b *Bed) Requests(t testing.TB, namespace string) []Request {
	t.Helper()
	data, err := os.ReadFile(b.plane.path("audit.log"))
	require.NoError(t, err)
	var requests []Request
	seen := map[string]bool{} // a watch that has ended is there twice
	for _, line := range bytes.Split(data, []byte("\n")) {
		var entry struct {
			AuditID, Verb, RequestURI string
			User                      struct{ Username string }
			ObjectRef                 struct{ Resource, Subresource, Name string }
			ResponseStatus            struct{ Code int }
		}
		if json.Unmarshal(line, &entry) != nil { // the last line may be half written
			continue
		}
		if seen[entry.AuditID] || !strings.HasPrefix(entry.User.Username, "system:serviceaccount:"+namespace+":") {
			continue
		}
		seen[entry.AuditID] = true
		r := Request{Verb: entry.Verb, Resource: entry.ObjectRef.Resource, Name: entry.ObjectRef.Name, URI: entry.RequestURI, Status: entry.ResponseStatus.Code}
		if entry.ObjectRef.Subresource != "" {
			r.Resource += "/" + entry.ObjectRef.Subresource
		}
		requests = append(requests, r)
	}
	return requests
}
