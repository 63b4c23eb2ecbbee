package hcl

import (
	"fmt"
	"strings"
	"testing"
)

// Each attribute is known where the hint sends its user.
func TestMisplacedAttributesAreKnownWhereTheyBelong(t *testing.T) {
	for name, hint := range misplaced {
		var file string
		switch hint {
		case inResources:
			file = "job \"j\" {\n stage \"s\" {\n resources {\n %s = 1\n }\n }\n }\n"
		case inStage:
			file = "job \"j\" {\n stage \"s\" {\n %s = 1\n }\n }\n"
		case inJob:
			file = "job \"j\" {\n %s = 1\n stage \"s\" {\n }\n }\n"
		default:
			continue // it has another name
		}
		if _, err := Parse("j.hcl", fmt.Appendf(nil, file, name)); err != nil && strings.Contains(err.Error(), "is not expected here") {
			t.Errorf("%s: %q, but there: %v", name, hint, err)
		}
	}
}
