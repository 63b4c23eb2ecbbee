package coordclient

import (
	"net/http"
	"net/http/httptest"
	"testing"
)

// TestTokensGoOverTLSAlone follows a leader from a TLS port to a plain one.
func TestTokensGoOverTLSAlone(t *testing.T) {
	seen := make(chan string, 1)
	h := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen <- r.Header.Get("Authorization") })
	plain, secure := httptest.NewServer(h), httptest.NewTLSServer(h)
	defer plain.Close()
	defer secure.Close()
	tr, err := NewTransport([]string{secure.URL}, func(address string) (*http.Transport, string, error) {
		return secure.Client().Transport.(*http.Transport), address, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	tr.ShowToken("drover_x")
	for address, want := range map[string]string{secure.URL: "Bearer drover_x", plain.URL: ""} {
		if !tr.follow(address) {
			t.Fatalf("%s is not taken", address)
		}
		res, err := (&http.Client{Transport: tr}).Get(Base)
		if err != nil {
			t.Fatal(err)
		}
		_ = res.Body.Close()
		if got := <-seen; got != want {
			t.Errorf("%s got %q, want %q", address, got, want)
		}
	}
}
