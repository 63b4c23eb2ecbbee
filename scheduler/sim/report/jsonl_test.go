package report

import (
	"strings"
	"testing"
)

func TestJSONLinesKeepEveryValue(t *testing.T) {
	table := "job,name,tenant,submit_s,start_s,met,outcome\n" +
		"1,12,\"a \"\"b\"\"\nc\",0.5,,true,succeeded\n" +
		"2,ü,1e5,1e+06,NaN,false,\n"
	want := `{"job":1,"name":"12","tenant":"a \"b\"\nc","submit_s":0.5,"start_s":null,"met":true,"outcome":"succeeded"}` + "\n" +
		`{"job":2,"name":"ü","tenant":"1e5","submit_s":1e+06,"start_s":"NaN","met":false,"outcome":null}` + "\n"
	var out strings.Builder
	if err := WriteJSONLines(&out, strings.NewReader(table)); err != nil {
		t.Fatal(err)
	}
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
	if err := WriteJSONLines(&out, strings.NewReader("a,b\n1\n")); err == nil {
		t.Error("a short row is taken")
	}
	out.Reset()
	if err := WriteJSONLines(&out, strings.NewReader("")); err != nil || out.Len() != 0 {
		t.Errorf("an empty table: %q, %v", out.String(), err)
	}
}
