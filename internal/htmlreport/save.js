document.getElementById("save").href = "data:application/json," +
  encodeURIComponent(document.getElementById("data").textContent);
