// SPDX-License-Identifier: Apache-2.0

package loadgen

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// recordsSchema names the form of raw records.
const recordsSchema = "llmctl.requests/v1"

// header is the first line of raw records: the Result without its requests.
type header struct {
	Schema string `json:"schema"`
	Result
	Records struct{} `json:"records,omitzero"` // hides those of Result
	Warmup  struct{} `json:"warmup,omitzero"`
}

// line is one request in raw records.
type line struct {
	Phase string `json:"phase"` // warmup or measured
	Record
}

// WriteRecords writes the raw records of a level as gzipped JSON lines. The first line is an object with
// "schema" and the fields of Result but its requests; each further line is a Record with its "phase",
// warmup or measured, in the order of Index within a phase. Times are nanoseconds. Several levels may
// follow one another in a file, as gzip allows: every level begins with its own header.
func WriteRecords(w io.Writer, r *Result) error {
	zip := gzip.NewWriter(w)
	out := bufio.NewWriter(zip)
	enc := json.NewEncoder(out)
	if err := enc.Encode(header{Schema: recordsSchema, Result: *r}); err != nil {
		return fmt.Errorf("write records: %w", err)
	}
	for _, part := range []struct {
		phase   string
		records []Record
	}{{"warmup", r.Warmup}, {"measured", r.Records}} {
		for i := range part.records {
			if err := enc.Encode(line{part.phase, part.records[i]}); err != nil {
				return fmt.Errorf("write records: %w", err)
			}
		}
	}
	if err := errors.Join(out.Flush(), zip.Close()); err != nil {
		return fmt.Errorf("write records: %w", err)
	}
	return nil
}

// ReadRecords reads what WriteRecords wrote: one Result for each level.
func ReadRecords(r io.Reader) ([]*Result, error) {
	zip, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("read records: %w", err)
	}
	var results []*Result
	err = jsonLines(zip, func(data []byte) error {
		var head header
		if err := json.Unmarshal(data, &head); err != nil {
			return err
		}
		switch {
		case head.Schema == recordsSchema:
			results = append(results, &head.Result)
			return nil
		case head.Schema != "":
			return fmt.Errorf("schema %s is not known, only %s", head.Schema, recordsSchema)
		case len(results) == 0:
			return errors.New("the header is missing")
		}
		var l line
		if err := json.Unmarshal(data, &l); err != nil {
			return err
		}
		last := results[len(results)-1]
		switch l.Phase {
		case "warmup":
			last.Warmup = append(last.Warmup, l.Record)
		case "measured":
			last.Records = append(last.Records, l.Record)
		default:
			return fmt.Errorf("phase %q is not known", l.Phase)
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read records: line %w", err)
	}
	return results, nil
}
