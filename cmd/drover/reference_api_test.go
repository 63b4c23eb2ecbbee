package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
)

// apiPage lists services, messages and enums by their descriptors, with the comments
// of the protobuf files, which generated code does not hold.
func apiPage(t *testing.T) string {
	var b strings.Builder
	b.WriteString("# API\n")
	fmt.Fprintf(&b, generatedNotice, "the protobuf files in `api/drover/v1`")
	b.WriteString(`
Every unary call is also JSON over HTTP POST. On the coordinator's machine:

    curl --unix-socket /run/drover/coordinator.sock -H 'Content-Type: application/json' -d '{}' \
      http://coordinator/drover.v1.ClientService/Status

Errors have a code of Connect: ` + "`unauthenticated`, `not_found`, `already_exists`, `invalid_argument`, `permission_denied`, `failed_precondition`, `resource_exhausted`, `unavailable`, `unimplemented`, `data_loss`" + `, and a message of one line. Fields are only added.
`)
	for _, f := range []protoreflect.FileDescriptor{droverv1.File_drover_v1_client_proto, droverv1.File_drover_v1_history_proto, droverv1.File_drover_v1_token_proto, droverv1.File_drover_v1_task_proto, droverv1.File_drover_v1_node_proto, droverv1.File_drover_v1_log_proto} {
		writeProtoFile(t, &b, f)
	}
	return b.String()
}

func writeProtoFile(t *testing.T, b *strings.Builder, f protoreflect.FileDescriptor) {
	src, err := os.ReadFile(filepath.Join(docsRoot, "api", filepath.FromSlash(f.Path())))
	if err != nil {
		t.Fatal(err)
	}
	c := protoComments(string(src))
	fmt.Fprintf(b, "\n## %s\n%s\n", strings.TrimPrefix(f.Path(), "drover/v1/"), escapeTags(c[""]))
	for i := range f.Services().Len() {
		s := f.Services().Get(i)
		fmt.Fprintf(b, "\n### %s\n%s\n| call | request | response | meaning |\n| --- | --- | --- | --- |\n", s.Name(), paragraph(c.of(t, s)))
		for k := range s.Methods().Len() {
			m := s.Methods().Get(k)
			fmt.Fprintf(b, "| `%s` | %s | %s | %s |\n", m.Name(), streamed(m.Input(), m.IsStreamingClient()), streamed(m.Output(), m.IsStreamingServer()), tableCell(c.of(t, m)))
		}
	}
	for i := range f.Messages().Len() {
		writeMessage(t, b, f.Messages().Get(i), c)
	}
	for i := range f.Enums().Len() {
		writeEnum(t, b, f.Enums().Get(i), c)
	}
}

func paragraph(s string) string {
	if s == "" {
		return ""
	}
	return escapeTags(s) + "\n"
}

func streamed(m protoreflect.MessageDescriptor, stream bool) string {
	if stream {
		return "stream " + string(m.Name())
	}
	return string(m.Name())
}

func writeMessage(t *testing.T, b *strings.Builder, m protoreflect.MessageDescriptor, c commentsOf) {
	if m.IsMapEntry() {
		return
	}
	fmt.Fprintf(b, "\n#### %s\n%s", localName(m), paragraph(c.of(t, m)))
	if m.Fields().Len() > 0 {
		b.WriteString("\n| field | number | type | meaning |\n| --- | --- | --- | --- |\n")
	}
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		fmt.Fprintf(b, "| `%s` | %d | %s | %s |\n", f.Name(), f.Number(), fieldType(f), tableCell(c.of(t, f)))
	}
	for i := range m.Messages().Len() {
		writeMessage(t, b, m.Messages().Get(i), c)
	}
	for i := range m.Enums().Len() {
		writeEnum(t, b, m.Enums().Get(i), c)
	}
}

func writeEnum(t *testing.T, b *strings.Builder, e protoreflect.EnumDescriptor, c commentsOf) {
	fmt.Fprintf(b, "\n#### %s\n%s\n| value | number | meaning |\n| --- | --- | --- |\n", localName(e), paragraph(c.of(t, e)))
	for i := range e.Values().Len() {
		v := e.Values().Get(i)
		fmt.Fprintf(b, "| `%s` | %d | %s |\n", v.Name(), v.Number(), tableCell(c.of(t, v)))
	}
}

// localName returns the name of a declaration within its file.
func localName(d protoreflect.Descriptor) string {
	return strings.TrimPrefix(string(d.FullName()), string(d.ParentFile().Package())+".")
}

func fieldType(f protoreflect.FieldDescriptor) string {
	one := func(f protoreflect.FieldDescriptor) string {
		switch f.Kind() {
		case protoreflect.MessageKind:
			return localName(f.Message())
		case protoreflect.EnumKind:
			return localName(f.Enum())
		default:
			return f.Kind().String()
		}
	}
	switch {
	case f.IsMap():
		return "map of " + one(f.MapKey()) + " to " + one(f.MapValue())
	case f.IsList():
		return "list of " + one(f)
	case f.ContainingOneof() != nil && !f.ContainingOneof().IsSynthetic():
		return one(f) + ", one of `" + string(f.ContainingOneof().Name()) + "`"
	default:
		return one(f)
	}
}

// commentsOf are the comments of a protobuf file by the declaration's name in the
// file, with dots. The file's own comment has the empty name.
type commentsOf map[string]string

// of returns the comment of a declaration, and fails the test if the file's scan did
// not come across it.
func (c commentsOf) of(t *testing.T, d protoreflect.Descriptor) string {
	t.Helper()
	name := localName(d)
	if v, ok := d.(protoreflect.EnumValueDescriptor); ok { // values are named beside their enum
		name = localName(v.Parent()) + "." + string(v.Name())
	}
	text, ok := c[name]
	if !ok {
		t.Errorf("the comments of %s do not have %s: write one declaration per line", d.ParentFile().Path(), name)
	}
	return text
}

var (
	protoOpenRE  = regexp.MustCompile(`^(message|enum|service|oneof) (\w+) \{`)
	protoFieldRE = regexp.MustCompile(`^(?:(?:repeated|optional) )?(?:map<[^>]*>|[\w.]+) (\w+) = \d+`)
	protoValueRE = regexp.MustCompile(`^(\w+) = -?\d+`)
	protoRPCRE   = regexp.MustCompile(`^rpc (\w+)\(`)
)

// protoComments scans a protobuf file: comment lines before a declaration, and a
// comment behind it on the same line.
func protoComments(src string) commentsOf {
	out := commentsOf{}
	type scope struct{ kind, name string }
	var scopes []scope
	var before []string
	put := func(name, trailing string) {
		path := ""
		for _, s := range scopes {
			if s.kind != "oneof" {
				path += s.name + "."
			}
		}
		out[path+name] = strings.TrimSpace(strings.Join(append(before, trailing), " "))
	}
	for _, line := range strings.Split(src, "\n") {
		line = strings.TrimSpace(line)
		if text, ok := strings.CutPrefix(line, "//"); ok {
			before = append(before, strings.TrimSpace(text))
			continue
		}
		code, trailing, _ := strings.Cut(line, "//")
		code, trailing = strings.TrimSpace(code), strings.TrimSpace(trailing)
		closed := strings.HasSuffix(code, "}")
		switch {
		case strings.HasPrefix(code, "syntax"):
			out[""] = strings.Join(before, " ")
		case protoRPCRE.MatchString(code):
			put(protoRPCRE.FindStringSubmatch(code)[1], trailing)
			closed = false // its braces are on the line
		case protoOpenRE.MatchString(code):
			m := protoOpenRE.FindStringSubmatch(code)
			if m[1] != "oneof" {
				put(m[2], trailing)
			}
			scopes = append(scopes, scope{m[1], m[2]})
		case protoFieldRE.MatchString(code):
			put(protoFieldRE.FindStringSubmatch(code)[1], trailing)
		case protoValueRE.MatchString(code):
			put(protoValueRE.FindStringSubmatch(code)[1], trailing)
		}
		if closed && len(scopes) > 0 {
			scopes = scopes[:len(scopes)-1]
		}
		before = nil
	}
	return out
}

func TestProtoComments(t *testing.T) {
	c := protoComments("// The file.\nsyntax = \"proto3\";\n\n// A thing\n// of two lines.\nmessage Thing {\n  int64 size = 1; // bytes\n  oneof body {\n    // Its name.\n    string name = 2;\n  }\n  map<string, int32> counts = 3;\n}\n\nmessage Empty {}\n\nenum Kind {\n  KIND_A = 0; // first\n}\n\nservice S {\n  // Get gets.\n  rpc Get(Thing) returns (stream Empty) {}\n}\n")
	for name, want := range map[string]string{
		"": "The file.", "Thing": "A thing of two lines.", "Thing.size": "bytes", "Thing.name": "Its name.", "Thing.counts": "",
		"Empty": "", "Kind": "", "Kind.KIND_A": "first", "S": "", "S.Get": "Get gets.",
	} {
		if got, ok := c[name]; !ok || got != want {
			t.Errorf("comment of %q: %q, %t, want %q", name, got, ok, want)
		}
	}
}
