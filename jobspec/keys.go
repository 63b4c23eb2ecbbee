package jobspec

import (
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/drover-run/drover/internal/keyorder"
)

// checkKeys checks what of a line is the key of a reduce stage, and which task gets it.
func (v *validator) checkKeys(at string, s *Stage) {
	if s.Kind != KindReduce {
		for _, f := range []struct {
			name string
			set  bool
		}{{"key_fields", s.KeyFields != 0}, {"key_order", s.KeyOrder != nil}, {"partition_fields", s.PartitionFields != 0}, {"partition_keys", s.PartitionKeys != nil}, {"partition_file", s.PartitionFile != ""}} {
			if f.set {
				v.addRelation([]string{at + ".kind"}, at+"."+f.name, "put it into the reduce stage", "%s belongs to the reduce stage", f.name)
			}
		}
		return
	}
	if s.KeyFields < 0 || s.KeyFields > keyorder.MaxFields {
		v.addProblem(at+".key_fields", fmt.Sprintf("give 1 to %d", keyorder.MaxFields), "a key of %d fields", s.KeyFields)
		return
	}
	fields := []string{at + ".key_fields"}
	if !v.checkKeyOrder(fields, at+".key_order", s) {
		return
	}
	switch n := s.keyFields(); {
	case s.PartitionFields < 0:
		v.addProblem(at+".partition_fields", "give 1 to key_fields", "%d fields of a key", s.PartitionFields)
	case s.PartitionFields > n:
		v.addRelation(fields, at+".partition_fields", "give at most key_fields, or raise key_fields", "%d fields of a key that has %d", s.PartitionFields, n)
	case s.PartitionFields > 0 && (s.PartitionKeys != nil || s.PartitionFile != ""):
		v.addProblem(at+".partition_fields", "leave it out: keys that begin with a partition key are not below it, so those of one first field stay together", "both a hash and partition keys choose the task of a key")
	case s.PartitionFile != "" && s.PartitionKeys != nil:
		v.addProblem(at+".partition_file", "keep one of the two", "both partition_keys and partition_file are set")
	case s.PartitionKeys != nil:
		v.checkPartitionKeys([]string{at + ".tasks", at + ".key_fields", at + ".key_order"}, at+".partition_keys", s)
	}
}

// checkKeyOrder reports whether there is an entry for each field of a key, or none at all. fields
// is the path of their number.
func (v *validator) checkKeyOrder(fields []string, at string, s *Stage) bool {
	for i, e := range s.KeyOrder {
		if !slices.Contains(keyorder.Entries(), e) {
			v.addProblem(fmt.Sprintf("%s[%d]", at, i), suggestOneOf(e, keyorder.Entries()...), "%q is no order of a field", e)
			return false
		}
	}
	have, want := len(s.KeyOrder), s.keyFields()
	switch {
	case s.KeyOrder == nil || have == want:
		return true
	case have == 0:
		v.addProblem(at, `leave it out: then keys are in the order of their bytes`, "an order of no field")
	case have > want:
		v.addRelation(fields, at, fmt.Sprintf("give one for each field of the key, or write key_fields = %d", have), "an order of %d fields, and a key has %d", have, want)
	default:
		v.addRelation(fields, at, `give one for each field of the key: "text" is the order of its bytes`, "%d of the key's %d fields have an order", have, want)
	}
	return false
}

// HasKeys reports whether the keys of a reduce stage, or their partitions, are not those of
// Hadoop's default.
func (s *Stage) HasKeys() bool {
	return s.KeyFields > 1 || s.HasKeyOrder() || s.PartitionFields > 0 && s.PartitionFields < s.keyFields() || len(s.PartitionKeys) > 0
}

// HasKeyOrder reports whether the keys of a reduce stage are in another order than that of their
// bytes.
func (s *Stage) HasKeyOrder() bool { return s.order() != nil }

// order returns the order of the keys. Of entries that Validate refuses it is that of their bytes.
func (s *Stage) order() keyorder.Order {
	o, _ := keyorder.Parse(s.KeyOrder)
	if len(s.KeyOrder) != s.keyFields() {
		return nil
	}
	return o
}

// keyFields returns the number of fields of a key.
func (s *Stage) keyFields() int { return max(s.KeyFields, 1) }

// checkPartitionKeys checks partition keys. others are the paths of what they depend on.
func (v *validator) checkPartitionKeys(others []string, at string, s *Stage) {
	if text, hint := s.checkNumberOfKeys(); text != "" {
		v.addRelation(others, at, hint, "%s", text)
		return
	}
	size := 0
	for i, key := range s.PartitionKeys {
		if size += len(key); size > MaxPartitionKeyBytes {
			v.addProblem(at, tooLongKeysHint, "the partition keys have more than %s", FormatSize(MaxPartitionKeyBytes))
			return
		}
		if text, hint := checkPartitionKey(s.PartitionKeys[:i], key, s.keyFields(), s.order()); text != "" {
			v.addRelation(others, fmt.Sprintf("%s[%d]", at, i), hint, "partition key %d, %.60q, %s", i+1, key, text)
			return
		}
	}
}

const tooLongKeysHint = "shorten them: a partition key need not be one that occurs, and its first letters do"

// checkNumberOfKeys returns what is wrong with the number of partition keys, "" if nothing is.
func (s *Stage) checkNumberOfKeys() (text, hint string) {
	have, want := len(s.PartitionKeys), s.Tasks-1
	switch {
	case have == want:
		return "", ""
	case want == 0:
		return fmt.Sprintf("1 task needs no partition key, not %d", have), fmt.Sprintf("write tasks = %d, or leave the partition keys out", have+1)
	default:
		return fmt.Sprintf("%d tasks need %d partition keys, not %d", s.Tasks, want, have), fmt.Sprintf("give %d, or write tasks = %d", want, have+1)
	}
}

// checkPartitionKey returns what is wrong with a partition key that follows the keys before, "" if
// nothing is.
func checkPartitionKey(before []string, key string, fields int, order keyorder.Order) (text, hint string) {
	switch {
	case key == "" && order.IsText(0):
		return "is empty", "remove it: no key is below it"
	case !utf8.ValidString(key):
		return "is not UTF-8", "end it before the first byte that is not: a partition key need not be one that occurs"
	case strings.Contains(key, "\n"):
		return "has a line end", "give the first fields of a line"
	case strings.Count(key, "\t") >= fields:
		return fmt.Sprintf("has %d fields, and a key has %d", strings.Count(key, "\t")+1, fields), "give the key alone, without the value behind it, or raise key_fields"
	case len(before) > 0 && order.Compare(before[len(before)-1], key) >= 0:
		if order != nil {
			return fmt.Sprintf("does not come after the one before, %.60q, in the order of key_order", before[len(before)-1]), "put them into that order, each once: drover job partition -order does"
		}
		return fmt.Sprintf("is not above the one before, %.60q", before[len(before)-1]), "sort them by bytes, each once: LC_ALL=C sort -u"
	}
	return "", ""
}

// checkWordCountKeys refuses keys of several fields from a mapper that writes words.
func (v *validator) checkWordCountKeys() {
	reducer, counts := (*Stage)(nil), false
	for i := range v.job.Stages {
		switch s := &v.job.Stages[i]; {
		case s.Kind == KindReduce:
			reducer = s
		case s.Kind == KindMap && len(s.Builtin) > 0:
			counts = s.Builtin[0] == "wordcount"
		}
	}
	if counts && reducer != nil && reducer.KeyFields > 1 {
		v.addProblem(fmt.Sprintf("stage[%q].key_fields", reducer.Name), "leave it out", "a key of %d fields, and the keys of the built-in mapper wordcount have one", reducer.KeyFields)
	}
}

// SetPartitionKeys sets the partition keys of a stage to the lines of its partition file, which
// then is no longer set. An error begins with the name of the file, and the line.
func (s *Stage) SetPartitionKeys(text []byte) error {
	name := s.PartitionFile
	if len(text) > MaxPartitionKeyBytes+MaxReduceTasks {
		return fmt.Errorf("%s: the partition keys have more than %s; %s", name, FormatSize(MaxPartitionKeyBytes), tooLongKeysHint)
	}
	keys, order := []string{}, s.order()
	size := 0
	for line := range strings.Lines(string(text)) {
		key := strings.TrimSuffix(line, "\n")
		if what, hint := checkPartitionKey(keys, key, s.keyFields(), order); what != "" {
			return fmt.Errorf("%s:%d: the partition key %.60q %s; %s", name, len(keys)+1, key, what, hint)
		}
		if size += len(key); size > MaxPartitionKeyBytes {
			return fmt.Errorf("%s:%d: the partition keys have more than %s; %s", name, len(keys)+1, FormatSize(MaxPartitionKeyBytes), tooLongKeysHint)
		}
		keys = append(keys, key)
	}
	s.PartitionFile, s.PartitionKeys = "", keys
	if what, hint := s.checkNumberOfKeys(); what != "" {
		return fmt.Errorf("%s: %s; %s", name, what, hint)
	}
	return nil
}
