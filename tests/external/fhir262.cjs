// Connects fhir262's tests with the server at FHIR_GYM_BASE, which suites.py starts.
const send = async (method, path, body) => {
  const answer = await fetch(process.env.FHIR_GYM_BASE + path, {
    method,
    headers: { "Content-Type": "application/fhir+json", Accept: "application/fhir+json" },
    body: body == null ? undefined : JSON.stringify(body),
  });
  const text = await answer.text();
  return { status: answer.status, body: text ? JSON.parse(text) : null };
};
const rest = {
  operation: (type, name, body) => send("POST", `/${type}/${name}`, body),
  systemOperation: (name, body) => send("POST", `/${name}`, body),
  read: (type, id) => send("GET", `/${type}/${id}`),
  create: (type, body) => send("POST", `/${type}`, body),
  update: (type, id, body) => send("PUT", `/${type}/${id}`, body),
  delete: (type, id) => send("DELETE", `/${type}/${id}`),
  search: (type, query) => send("GET", `/${type}${query ? `?${query}` : ""}`),
};
exports.impl = { server: { startWithCoreOnly: async () => ({ rest, stop: async () => {} }) } };
