// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
)

// Labels of every object of a trial and of its pods. An object without the
// experiment's id is never touched.
const (
	LabelExperimentID = "llmctl.io/experiment-id"
	LabelTemplate     = "llmctl.io/template"
	LabelTrial        = "llmctl.io/trial" // name of the trial's workload
	LabelKeep         = "llmctl.io/keep"  // kept for debugging
)

// Annotations of the objects: names in full, which labels may not hold.
const (
	annotationExperiment = "llmctl.io/experiment"
	annotationTemplate   = "llmctl.io/template"
	annotationIndex      = "llmctl.io/trial-index"
	annotationObject     = "llmctl.io/template-object" // name of the object in the template
	// annotationAttempt tells the objects of one call of Deploy from others of the
	// same name, after an answer that was lost.
	annotationAttempt = "llmctl.io/attempt"
)

// maxLabel is the longest label value, and the longest name of a Service.
const maxLabel = 63

// labelValue makes a text a valid label value; texts that differ stay different.
func labelValue(text string) string {
	valid := strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_', r == '.':
			return r
		}
		return '-'
	}, text)
	valid = strings.Trim(valid, "-_.")
	if valid == text && len(valid) <= maxLabel {
		return valid
	}
	sum := digest(text, 8)
	return strings.Trim(valid[:min(len(valid), maxLabel-len(sum)-1)]+"-"+sum, "-_.")
}

// digest is a short checksum in lower-case hexadecimal digits.
func digest(text string, length int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:length]
}

// ofExperiment selects what belongs to an experiment, ofTrial to one trial.
func ofExperiment(id string) labels.Set { return labels.Set{LabelExperimentID: id} }

func ofTrial(id, trial string) labels.Set {
	return labels.Set{LabelExperimentID: id, LabelTrial: trial}
}
