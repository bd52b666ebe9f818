// Command targets tells Prometheus the cluster's pods by its HTTP service discovery.
//
// Debian's Prometheus is built without its own discovery of Kubernetes. What this one answers has
// the labels of that (role pod), as far as config/monitoring/prometheus uses them, so that the same
// relabelling runs.
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

func main() {
	config, err := rest.InClusterConfig()
	if err != nil {
		log.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Addr: "127.0.0.1:9091", Handler: handler(client), ReadTimeout: 10 * time.Second}
	log.Fatal(server.ListenAndServe())
}

// target is one element of the answer.
type target struct {
	Targets []string          `json:"targets"`
	Labels  map[string]string `json:"labels"`
}

// handler answers GET /?namespace=NAMESPACE&label=SELECTOR; both may be empty.
func handler(client kubernetes.Interface) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		query := r.URL.Query()
		pods, err := client.CoreV1().Pods(query.Get("namespace")).List(r.Context(), metav1.ListOptions{LabelSelector: query.Get("label")})
		if err != nil {
			http.Error(w, fmt.Sprintf("list pods: %v", err), http.StatusBadGateway)
			return
		}
		targets := []target{}
		for _, pod := range pods.Items {
			if pod.Status.PodIP == "" {
				continue
			}
			for _, container := range pod.Spec.Containers {
				for _, port := range container.Ports {
					labels := map[string]string{
						"__meta_kubernetes_namespace":               pod.Namespace,
						"__meta_kubernetes_pod_name":                pod.Name,
						"__meta_kubernetes_pod_phase":               string(pod.Status.Phase),
						"__meta_kubernetes_pod_container_name":      container.Name,
						"__meta_kubernetes_pod_container_port_name": port.Name,
					}
					for key, value := range pod.Labels {
						labels["__meta_kubernetes_pod_label_"+notInLabels.ReplaceAllString(key, "_")] = value
					}
					targets = append(targets, target{[]string{net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(int(port.ContainerPort)))}, labels})
				}
			}
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(targets) // Prometheus asks again
	})
}

var notInLabels = regexp.MustCompile(`[^a-zA-Z0-9_]`)
