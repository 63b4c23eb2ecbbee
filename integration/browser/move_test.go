package browser

import (
	"context"
	"net/http"
	"net/http/httptest"
	"sync"

	"connectrpc.com/connect"
	"github.com/chromedp/chromedp"
	"google.golang.org/protobuf/proto"

	droverv1 "github.com/drover-run/drover/api/drover/v1"
	"github.com/drover-run/drover/api/drover/v1/droverv1connect"
	"github.com/drover-run/drover/ui"
)

// moving is the API of the running coordinator as if its node could checkpoint, with
// another such node beside it. It keeps the moves that are asked for: plain processes
// cannot be moved.
type moving struct {
	droverv1connect.ClientServiceClient
	mu    sync.Mutex
	asked []*droverv1.SetLevelRequest
}

// otherNode is the node that a task can be moved to.
const otherNode = "elsewhere"

func (m *moving) ListNodes(ctx context.Context, r *connect.Request[droverv1.ListNodesRequest]) (*connect.Response[droverv1.ListNodesResponse], error) {
	res, err := m.ClientServiceClient.ListNodes(ctx, r)
	if err != nil {
		return nil, err
	}
	for _, n := range res.Msg.Nodes {
		n.Info.Levels = append(n.Info.Levels, droverv1.Level_LEVEL_CHECKPOINTED)
		other := proto.CloneOf(n)
		other.Node, other.Info.Name = n.Node+1000, otherNode
		res.Msg.Nodes = append(res.Msg.Nodes, other)
	}
	return res, nil
}

func (m *moving) SetLevel(_ context.Context, r *connect.Request[droverv1.SetLevelRequest]) (*connect.Response[droverv1.SetLevelResponse], error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.asked = append(m.asked, r.Msg)
	return connect.NewResponse(&droverv1.SetLevelResponse{}), nil
}

// moves presses the button that moves a task to another node.
func (s *scene) moves(job string) {
	s.t.Helper()
	h := s.client()
	api := &moving{ClientServiceClient: droverv1connect.NewClientServiceClient(h, "http://c")}
	srv := httptest.NewServer(ui.New(ui.Config{API: api, History: droverv1connect.NewHistoryServiceClient(h, "http://c")}))
	s.t.Cleanup(func() { srv.CloseClientConnections(); srv.Close() })
	was := s.base
	s.base = srv.URL
	defer func() { s.base = was }()
	s.open("/jobs/" + job + "/tasks/first/1")
	s.press("Move")
	api.mu.Lock()
	defer api.mu.Unlock()
	if len(api.asked) != 1 || api.asked[0].GetNode() != otherNode || api.asked[0].GetJob() != job || api.asked[0].GetStage() != "first" || api.asked[0].GetTask() != 1 || api.asked[0].GetLevel() != droverv1.Level_LEVEL_RUNNING {
		s.t.Errorf("the button asks for %v", api.asked)
	}
}

// client returns a client of the cluster's socket.
func (s *scene) client() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: s.dial}}
}

// accessibleHere checks the page that is open as accessible does.
func (s *scene) accessibleHere(what string) {
	s.t.Helper()
	s.do(what+" on a phone", chromedp.EmulateViewport(390, 844))
	s.until(what+" is no wider than a phone", `document.documentElement.scrollWidth <= 390`)
	for rule, is := range accessRules {
		s.until(what+": "+rule, is)
	}
	s.do("a wide screen", chromedp.EmulateViewport(1280, 900))
}
