// SPDX-License-Identifier: Apache-2.0

package engine

import "regexp"

var secretFlag = regexp.MustCompile(`(?i)((?:api[-_]?key|token|password|secret)['"]?[ =:]+)\S+`)

// redact hides what stands behind words such as --api-key, for messages that
// quote command lines and logs.
func redact(text string) string { return secretFlag.ReplaceAllString(text, "${1}…") }
