package coordinator

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/internal/pki"
	"github.com/drover-run/drover/jobspec"
)

type accessIdentity struct {
	letter byte
	name   string
}

// accessIdentities are the kinds of callers of the access matrix, in the order
// of its columns: r a reader of tenant a, s a submitter, e a user without rights
// there, o the cluster's operator, n node n1, m another node, c a coordinator.
// None, other CA, expired and revoked never get past the handshake.
var accessIdentities = []accessIdentity{{'r', "user/reader"}, {'s', "user/submitter"}, {'e', "user/stranger"}, {'o', "user/root"}, {'n', "node/n1"}, {'m', "node/n2"}, {'c', "coordinator/other"}}

// accessTokens are tokens as further columns: who shows one is treated as the
// identity of that letter, but by the TokenService, which denies itself to all.
var accessTokens = []struct {
	letter byte
	token  *droverv1.CreateTokenRequest
}{
	{'r', &droverv1.CreateTokenRequest{User: "reader"}},
	{'s', &droverv1.CreateTokenRequest{User: "submitter", Tenants: []string{"a"}, Right: droverv1.TokenRight_TOKEN_RIGHT_SUBMIT}},
	{'r', &droverv1.CreateTokenRequest{User: "submitter", Right: droverv1.TokenRight_TOKEN_RIGHT_READ}},
	{'e', &droverv1.CreateTokenRequest{User: "submitter", Tenants: []string{"default"}}},
	{'e', &droverv1.CreateTokenRequest{User: "root"}}, // without all rights no operator
	{'o', &droverv1.CreateTokenRequest{User: "root", Right: droverv1.TokenRight_TOKEN_RIGHT_ALL}},
}

// accessMatrix says for each call of the coordinator and for each identity
// whether the call is denied (-), the job is hidden (h), or access is granted
// (+), whatever the call then says about its request.
var accessMatrix = map[string]struct{ request, want string }{
	//                                                                 rseonmc
	"ClientService/Status":               {`{}`, "++++---"},
	"ClientService/HasBlobs":             {`{}`, "-+-+---"},
	"ClientService/PutBlob":              {`{}`, "-+-+---"},
	"ClientService/SubmitJob":            {`{"spec":SPEC}`, "-+-+---"},
	"ClientService/PlanJob":              {`{"spec":SPEC}`, "-+-+---"},
	"ClientService/ListJobs":             {`{}`, "++++---"},
	"ClientService/GetJob":               {`{"job":"1"}`, "++h+---"},
	"ClientService/StopJob":              {`{"job":"2"}`, "-+h+---"},
	"ClientService/WatchJob":             {`{"job":"2"}`, "++h+---"},
	"ClientService/ListTasks":            {`{"job":"1"}`, "++h+---"},
	"ClientService/Logs":                 {`{"key":{"job":"1"}}`, "++h+---"},
	"ClientService/Exec":                 {`{"key":{"job":"1"}}`, "-+h+---"},
	"ClientService/SetLevel":             {`{"job":"1","level":"LEVEL_FROZEN"}`, "-+h+---"},
	"ClientService/ListNodes":            {`{}`, "++++---"},
	"ClientService/DrainNode":            {`{"node":"nowhere"}`, "---+---"},
	"ClientService/MaintainNode":         {`{"node":"nowhere"}`, "---+---"},
	"ClientService/ApplyTenants":         {`{}`, "---+---"},
	"ClientService/DeleteTenant":         {`{"name":"nowhere"}`, "---+---"},
	"ClientService/ListTenants":          {`{}`, "++++---"},
	"ClientService/Events":               {`{"job":"1"}`, "++h+---"},
	"ClientService/GetScheduler":         {`{}`, "++++---"},
	"ClientService/SetScheduler":         {`{"name":"fifo"}`, "---+---"},
	"ClientService/Calibration":          {`{}`, "++++---"},
	"OperatorService/SaveSnapshot":       {`{}`, "---+---"},
	"DebugService/Monitor":               {`{}`, "---+---"},
	"DebugService/Profile":               {`{"kind":"heap"}`, "---+---"},
	"OperatorService/ListServers":        {`{}`, "---+---"},
	"OperatorService/AddServer":          {`{}`, "---+---"},
	"OperatorService/RemoveServer":       {`{}`, "---+---"},
	"OperatorService/TransferLeadership": {`{}`, "---+---"},
	"OperatorService/ListUnknownRuns":    {`{}`, "---+---"},
	"OperatorService/DecideUnknownRun":   {`{}`, "---+---"},
	"PeerService/Describe":               {`{}`, "-------"}, // coordinators have a port of their own
	"PeerService/Join":                   {`{}`, "-------"},
	"PeerService/FetchFiles":             {`{}`, "-------"},
	"PeerService/GetFile":                {`{}`, "-------"},
	"NodeService/Register":               {`{"node":{"name":"n1","allocatable":{"cpu":"-1"}}}`, "----+--"},
	"NodeService/Watch":                  {`{"node":1,"epoch":"7"}`, "----+--"},
	"NodeService/Report":                 {`{"node":1,"epoch":"7"}`, "----+--"},
	"NodeService/GetBlob":                {`{"digest":"sha256:00"}`, "----++-"},
	"HistoryService/ListPastJobs":        {`{}`, "++++---"},
	"HistoryService/GetPastJob":          {`{"job":"2"}`, "++h+---"},
	"HistoryService/ListPastAttempts":    {`{"job":"2"}`, "++h+---"},
	"HistoryService/Usage":               {`{}`, "++++---"},
	"HistoryService/ListPastSamples":     {`{}`, "++++---"},
	"TokenService/CreateToken":           {`{"lifeMs":"-1"}`, "++++---"},
	"TokenService/ListTokens":            {`{}`, "++++---"},
	"TokenService/RevokeToken":           {`{"id":"0"}`, "++++---"},
	"SecretService/PutSecret":            {`{"tenant":"a"}`, "---+---"},
	"SecretService/ListSecrets":          {`{"tenant":"a"}`, "-+-+---"},
	"SecretService/DeleteSecret":         {`{"tenant":"a","name":"x"}`, "---+---"},
	"SecretService/RotateSecrets":        {`{}`, "---+---"},
	"NodeService/GetSecrets":             {`{"node":1,"epoch":"7"}`, "----+--"},
	"ClientService/GetSchedule":          {`{"job":"1"}`, "++h+---"},
}

// TestAccessMatrix calls every call of every service of the coordinator as every
// kind of identity. A call without a row fails, here and in the coordinator.
func TestAccessMatrix(t *testing.T) {
	var ago atomic.Int64 // how far the coordinator's clock is behind
	ago.Store(int64(time.Hour))
	b, as, base := secureWith(t, func(c *Config) { c.Now = func() time.Time { return time.Now().Add(-time.Duration(ago.Load())) } })
	root := droverv1connect.NewClientServiceClient(as("user/root"), base)
	if _, err := root.ApplyTenants(b.ctx, connect.NewRequest(&droverv1.ApplyTenantsRequest{Tenants: []*droverv1.Tenant{
		{Name: "a", Submit: []string{"submitter"}, Read: []string{"reader"}}, {Name: "default"}}})); err != nil {
		t.Fatal(err)
	}
	tokens := droverv1connect.NewTokenServiceClient(as("user/root"), base)
	bearers, unknown := map[*http.Client]byte{}, "drover_"+strings.Repeat("0", 2*tokenIDBytes)+"_"+strings.Repeat("0", 2*tokenSecretBytes)
	refused := map[string]*http.Client{"nobody": b.withToken(t, ""), "an unknown token": b.withToken(t, unknown), "no token": b.withToken(t, "xyz"),
		"an expired token": b.withToken(t, newTestToken(t, tokens, &droverv1.CreateTokenRequest{User: "root", LifeMs: 60_000}))}
	ago.Store(0)
	revoked := newTestToken(t, tokens, &droverv1.CreateTokenRequest{User: "root"})
	if _, err := tokens.RevokeToken(b.ctx, connect.NewRequest(&droverv1.RevokeTokenRequest{Id: tokenID(revoked)})); err != nil {
		t.Fatal(err)
	}
	refused["a revoked token"] = b.withToken(t, revoked)
	both := as("user/root")
	both.Transport = &bearerTransport{both.Transport.(*http.Transport), newTestToken(t, tokens, &droverv1.CreateTokenRequest{User: "root"})}
	refused["a certificate and a token"] = both
	for _, x := range accessTokens {
		bearers[b.withToken(t, newTestToken(t, tokens, x.token))] = x.letter
	}
	submitter := droverv1connect.NewClientServiceClient(as("user/submitter"), base)
	spec := func(name string) string {
		j := groupJob(name, 1)
		j.Tenant = "a"
		jobspec.SetDefaults(j)
		text, err := jobspec.Encode(j)
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	n1 := droverv1connect.NewNodeServiceClient(as("node/n1"), base)
	if _, err := n1.Register(b.ctx, connect.NewRequest(&droverv1.RegisterRequest{Node: matrixNode()})); err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if _, err := submitter.SubmitJob(b.ctx, connect.NewRequest(&droverv1.SubmitJobRequest{Spec: spec(fmt.Sprint("j", i))})); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := submitter.StopJob(b.ctx, connect.NewRequest(&droverv1.StopJobRequest{Job: "2"})); err != nil { // its watch ends
		t.Fatal(err)
	}
	quoted, err := json.Marshal(spec("j2"))
	if err != nil {
		t.Fatal(err)
	}
	clients := map[string]*http.Client{}
	for _, id := range accessIdentities {
		clients[id.name] = as(id.name)
		clients[id.name].Timeout = 10 * time.Second
	}
	seen := 0
	for _, service := range apiServices(t) {
		for i := range service.Methods().Len() {
			m := service.Methods().Get(i)
			name := string(service.Name()) + "/" + string(m.Name())
			row, ok := accessMatrix[name]
			if _, listed := procedures["/drover.v1."+name]; !ok || !listed || len(row.want) != len(accessIdentities) {
				t.Errorf("%s has no complete row in the access matrix (%v) or none in procedures (%v)", name, ok, listed)
				continue
			}
			seen++
			body := strings.ReplaceAll(row.request, "SPEC", string(quoted))
			for who, c := range refused {
				if got := accessOutcome(t, c, base+"/drover.v1."+name, m, body); got != '!' {
					t.Errorf("%s by %s: %c, want it refused before anything is looked at", name, who, got)
				}
			}
			for c, letter := range bearers {
				want := row.want[slices.IndexFunc(accessIdentities, func(id accessIdentity) bool { return id.letter == letter })]
				if service.Name() == "TokenService" {
					want = '-'
				}
				if got := accessOutcome(t, c, base+"/drover.v1."+name, m, body); got != want {
					t.Errorf("%s by a token like %c: %c, want %c", name, letter, got, want)
				}
			}
			for k, id := range accessIdentities {
				if got := accessOutcome(t, clients[id.name], base+"/drover.v1."+name, m, body); got != row.want[k] {
					t.Errorf("%s by %s: %c, want %c", name, id.name, got, row.want[k])
				}
			}
		}
	}
	if seen != len(accessMatrix) {
		t.Errorf("the matrix has %d rows, of which %d are calls", len(accessMatrix), seen)
	}
}

func matrixNode() *droverv1.NodeInfo {
	r := &droverv1.Resources{Cpu: 1000, Memory: 1 << 30, Io: 1 << 20}
	return &droverv1.NodeInfo{Name: "n1", Rack: "/r", Measured: r, Allocatable: r, Disks: []*droverv1.Disk{{Name: "d", Path: "/d", Io: 1 << 20, Space: 10 << 30}},
		Levels: []droverv1.Level{droverv1.Level_LEVEL_RUNNING}}
}

// apiServices returns the services of the API but TaskService, which nodes serve.
func apiServices(t *testing.T) (out []protoreflect.ServiceDescriptor) {
	t.Helper()
	protoregistry.GlobalFiles.RangeFilesByPackage("drover.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			if s := f.Services().Get(i); s.Name() != "TaskService" {
				out = append(out, s)
			}
		}
		return true
	})
	if len(out) < 2 {
		t.Fatalf("%d services", len(out))
	}
	return out
}

// accessOutcome calls a method and returns + (granted), h (hidden), - (denied) or
// ! (refused since the caller is unknown).
func accessOutcome(t *testing.T, c *http.Client, url string, m protoreflect.MethodDescriptor, body string) byte {
	t.Helper()
	kind := "application/json"
	payload := []byte(body)
	if m.IsStreamingClient() || m.IsStreamingServer() {
		kind = "application/connect+json"
		payload = append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body))), body...)
	}
	res, err := c.Post(url, kind, bytes.NewReader(payload))
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	switch {
	case strings.Contains(string(text), `"unauthenticated"`), strings.Contains(string(text), "too many wrong tokens"):
		return '!'
	case strings.Contains(string(text), `"permission_denied"`):
		return '-'
	case strings.Contains(string(text), "that you may read"):
		return 'h'
	default:
		return '+'
	}
}

// TestStrangersEndAtTheHandshake tries certificates that no call may ever see.
func TestStrangersEndAtTheHandshake(t *testing.T) {
	b, as, base := secure(t)
	expired := func() *http.Client {
		dir := filepath.Dir(b.caFile)
		if err := pki.IssueCert(dir, pki.CertRequest{Kind: pki.KindUser, Name: "late", Lifetime: time.Minute}, time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
		conf, err := pki.Files{CA: b.caFile, Cert: filepath.Join(dir, "late.pem"), Key: filepath.Join(dir, "late.key")}.ClientConfig()
		if err != nil {
			t.Fatal(err)
		}
		return &http.Client{Transport: &http.Transport{TLSClientConfig: conf}}
	}()
	other := func() *http.Client {
		dir := t.TempDir()
		if err := pki.CreateCA(dir, time.Now()); err != nil {
			t.Fatal(err)
		}
		if err := pki.IssueCert(dir, pki.CertRequest{Kind: pki.KindUser, Name: "root"}, time.Now()); err != nil {
			t.Fatal(err)
		}
		conf, err := pki.Files{CA: filepath.Join(dir, "ca.pem"), Cert: filepath.Join(dir, "root.pem"), Key: filepath.Join(dir, "root.key")}.ClientConfig()
		if err != nil {
			t.Fatal(err)
		}
		conf.RootCAs = as("user/x").Transport.(*http.Transport).TLSClientConfig.RootCAs
		return &http.Client{Transport: &http.Transport{TLSClientConfig: conf}}
	}()
	for name, c := range map[string]*http.Client{"expired": expired, "of another CA": other} {
		for procedure := range procedures {
			if res, err := c.Post(base+procedure, "application/json", strings.NewReader(`{}`)); err == nil {
				_ = res.Body.Close()
				t.Errorf("a certificate that is %s got an answer from %s: %s", name, procedure, res.Status)
			}
		}
	}
}
