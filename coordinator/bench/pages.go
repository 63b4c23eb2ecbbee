package bench

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"html"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

// pagePaths are the pages that stay open during a measurement, one after another.
var pagePaths = []string{"/", "/jobs", "/schedule", "/schedule?by=racks", "/tenants", "/scheduler"}

// dataAddress finds the addresses of the data of pictures in a page.
var dataAddress = regexp.MustCompile(`data-(?:map|schedule)="([^"]+)"`)

// maxPageEvent bounds one event of a live page, in bytes.
const maxPageEvent = 16 << 20

// openPages opens live pages, which do until ctx ends what browsers do with them, and
// returns when each has been shown once.
func (r *run) openPages(ctx, until context.Context) error {
	shown := make(chan error, r.cfg.Pages)
	for i := range r.cfg.Pages {
		c, err := r.dial()
		if err != nil {
			return err
		}
		p := &livePage{client: c.HTTP, base: c.Base, path: pagePaths[i%len(pagePaths)], counts: r.counts, shown: shown}
		r.nodes.Go(func() {
			defer c.HTTP.CloseIdleConnections()
			if err := p.follow(until); err != nil && until.Err() == nil {
				r.counts.pageLost(p.path, err)
				shown <- err
			}
		})
	}
	for range r.cfg.Pages {
		select {
		case err := <-shown:
			if err != nil {
				return err
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// livePage is a page that is open in a browser.
type livePage struct {
	client     *http.Client
	base, path string
	counts     *counts
	shown      chan<- error // gets nil once
	first      bool
}

// follow reads the page's changes and, as its scripts do, the data of its pictures.
func (p *livePage) follow(ctx context.Context) error {
	res, err := p.get(ctx, "/live?"+url.Values{"path": {p.path}}.Encode())
	if err != nil {
		return err
	}
	defer res.Body.Close()
	lines := bufio.NewScanner(res.Body)
	lines.Buffer(nil, maxPageEvent)
	for kind := ""; lines.Scan(); {
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			kind = name
		}
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok || kind != "main" {
			continue
		}
		if err := p.show(ctx, data); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	return io.ErrUnexpectedEOF
}

// show takes a page's main part.
func (p *livePage) show(ctx context.Context, data string) error {
	var main struct{ HTML string }
	if err := json.Unmarshal([]byte(data), &main); err != nil {
		return err
	}
	for _, m := range dataAddress.FindAllStringSubmatch(main.HTML, -1) {
		res, err := p.get(ctx, html.UnescapeString(m[1]))
		if err != nil {
			return err
		}
		_, err = io.Copy(io.Discard, res.Body)
		if err := res.Body.Close(); err != nil {
			return err
		}
		if err != nil {
			return err
		}
	}
	p.counts.pages.Add(1)
	if !p.first {
		p.first = true
		p.shown <- nil
	}
	return nil
}

func (p *livePage) get(ctx context.Context, address string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, p.base+address, nil)
	if err != nil {
		return nil, err
	}
	res, err := p.client.Do(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		_ = res.Body.Close() // its status says enough
		return nil, fmt.Errorf("%s: %s", address, res.Status)
	}
	return res, nil
}
